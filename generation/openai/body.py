"""The bytes of a request into a JSON object, whatever comes."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from django.http import HttpRequest

from generation.errors import RequestRefused
from generation.openai.errors import BodyTooLarge, LengthRequired, UnsupportedBody

#: Texts of a million tokens fit; anything above is a mistake or an attack.
MAX_BODY_BYTES = 4 * 1024 * 1024

#: Half of a surrogate pair in an escape: JSON lets it through, but it is no text.
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def read_json(request: HttpRequest) -> dict[str, Any]:
    """The JSON object in the body. Raises RequestRefused (400, 411, 413, 415) that says what is wrong."""
    has_length = request.META.get("CONTENT_LENGTH") not in (None, "", "0")
    if not has_length and not request.META.get("HTTP_TRANSFER_ENCODING"):
        raise _not_json("it is empty")  # whatever its type would be
    if request.content_type != "application/json":
        raise UnsupportedBody("The body must be JSON, sent with `Content-Type: application/json`.")
    if request.META.get("HTTP_CONTENT_ENCODING", "identity").lower() not in ("", "identity"):
        raise UnsupportedBody("The body must not be compressed.")
    return _parse(_read(request))


def _read(request: HttpRequest) -> bytes:
    length = request.META.get("CONTENT_LENGTH") or ""
    if length:
        if not re.fullmatch(r"[0-9]{1,18}", length):
            raise RequestRefused("Content-Length must be one whole number.", code="bad_request")
        if int(length) > MAX_BODY_BYTES:
            raise _too_large()
        return request.read(int(length))
    if not request.META.get("wsgi.input_terminated"):
        raise LengthRequired("The request must say how long its body is (Content-Length).")
    # Django reads no body that has no length; the server ends this one where its chunks end.
    try:
        body: bytes = request.META["wsgi.input"].read(MAX_BODY_BYTES + 1)
    except Exception as error:  # each server has errors of its own for chunks that are none
        raise RequestRefused("The chunks of the body are malformed, or broke off.", code="bad_request") from error
    if len(body) > MAX_BODY_BYTES:
        raise _too_large()
    request.chunks_were_read = True  # type: ignore[attr-defined]  # for the middleware: nothing is left behind
    return body


def _parse(body: bytes) -> dict[str, Any]:
    if not body.strip():
        raise _not_json("it is empty")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _not_json(f"byte {error.start} is not UTF-8") from None
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise _not_json("it is nested too deeply") from None
    except ValueError as error:
        raise _not_json(str(error)) from None
    if not isinstance(value, dict):
        raise RequestRefused("The body must be a JSON object.", code="invalid_type")
    if _SURROGATE.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise _not_json("it holds half of a surrogate pair, which is no character") from None
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _not_json(why: str) -> RequestRefused:
    return RequestRefused(f"The body is not valid JSON: {why}.", code="invalid_json")


def _too_large() -> BodyTooLarge:
    return BodyTooLarge(f"The body is larger than {MAX_BODY_BYTES} bytes.")
