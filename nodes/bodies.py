"""Bodies of requests, read within limits. Knows neither Django nor WSGI."""

from __future__ import annotations

from collections.abc import Callable

from nodes.errors import BadRequest, LengthRequired, PayloadTooLarge, UnsupportedMediaType


def read(source: Callable[[int], bytes], *, given_type: str, given_length: str, content_type: str, limit: int) -> bytes:
    """Reads the whole body of a request: its `given_length` in bytes, at most `limit`.

    Raises UnsupportedMediaType, LengthRequired or PayloadTooLarge before anything was read; BadRequest when the body
    broke off.
    """
    if given_type.partition(";")[0].strip().lower() != content_type:
        raise UnsupportedMediaType(f"Content-Type must be {content_type}.")
    if not given_length.isdecimal():
        raise LengthRequired()
    length = int(given_length)
    if length > limit:
        raise PayloadTooLarge(f"The body may hold {limit} bytes, not {length}.")
    try:
        body = source(length)
    except OSError:
        raise BadRequest("The body broke off.") from None
    if len(body) < length:
        raise BadRequest("The body is shorter than its Content-Length.")
    return body
