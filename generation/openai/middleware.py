"""What every answer under /v1 carries, whoever gave it: a request id, and JSON if it is an error."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable

from django.http import HttpRequest, HttpResponseBase

from generation.openai.errors import of_status

HEADER = "x-request-id"
_SANE = re.compile(r"[A-Za-z0-9_.-]{1,128}")


class OpenAIMiddleware:
    """Leaves every other path alone.

    It stands outermost, so that it also sees what Django and other middleware answer themselves: a refused
    host is an HTML page, in debug mode with settings and source.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if request.path_info != "/v1" and not request.path_info.startswith("/v1/"):
            return self._get_response(request)
        given = request.headers.get(HEADER, "")
        request_id = given if _SANE.fullmatch(given) else f"req_{secrets.token_hex(16)}"
        request.request_id = request_id  # type: ignore[attr-defined]  # for the log
        response = self._get_response(request)
        if response.status_code >= 400 and not _is_json(response):
            # The replaced answer is not closed: that would end the request for Django.
            response = of_status(response.status_code).response()
        response.headers[HEADER] = request_id
        if _has_unread_body(request):
            # The rest of the body would be taken for the next request; meshsite.wsgi acts on this header.
            response.headers["Connection"] = "close"
        return response


def _is_json(response: HttpResponseBase) -> bool:
    return response.headers.get("Content-Type", "").startswith("application/json")


def _has_unread_body(request: HttpRequest) -> bool:
    if "gunicorn.socket" not in request.META or getattr(request, "chunks_were_read", False):
        return False
    has_length = request.META.get("CONTENT_LENGTH", "") not in ("", "0")
    return (has_length or "HTTP_TRANSFER_ENCODING" in request.META) and not request._read_started  # type: ignore[attr-defined]
