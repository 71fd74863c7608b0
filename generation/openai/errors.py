"""The one place where what went wrong becomes OpenAI's error JSON.

    {"error": {"message": …, "type": …, "param": …, "code": …}}

Clients act on the status, so what is wrong inside the mesh must never look like the client's mistake: a
node's 4xx becomes a 502 or 503, and 409 is never sent (the `openai` client would send the whole request
again). What nodes say of themselves, addresses above all, goes to the log and the generation's record, not to
clients.
"""

from __future__ import annotations

import inspect
import logging
from typing import Any

from django.core.exceptions import PermissionDenied, SuspiciousOperation
from django.http import Http404, HttpRequest, JsonResponse
from django.http.request import UnreadablePostError
from rest_framework import exceptions

from generation.errors import Cancelled, GaveUp, RequestRefused, TookTooLong
from nodes import errors as mesh

logger = logging.getLogger(__name__)

INVALID = "invalid_request_error"
SERVER = "server_error"
#: A client that went away before its answer; nginx's number, since nobody is left to read it.
CLIENT_GONE = 499

#: What a client can do nothing about, by the error that a node raised: status, code and message.
_OF_NODES: dict[type[mesh.MeshnetError], tuple[int, str, str]] = {
    mesh.KVCacheMiss: (503, "cache_lost", "The mesh lost this generation's cache and could not restore it."),
    mesh.Released: (503, "cache_lost", "The mesh lost this generation's cache and could not restore it."),
    mesh.WrongModel: (503, "no_route", "The nodes of the mesh changed under this generation."),
    mesh.WrongLayers: (503, "no_route", "The nodes of the mesh changed under this generation."),
    mesh.HandoverFailed: (503, "no_route", "The nodes of the mesh could not reach each other."),
    mesh.PayloadTooLarge: (503, "cache_too_small", "The mesh has too little cache memory for so long a text."),
}
#: Errors that say that much was tried already, or that the same would come of it again.
_FINAL = (Cancelled, GaveUp, TookTooLong, mesh.PayloadTooLarge)
_REFUSED_BY_NODE = (502, "node_refused", "A node refused a step of this generation.")

_BY_STATUS = {
    400: "bad_request",
    401: "invalid_api_key",
    403: "permission_denied",
    404: "unknown_url",
    405: "method_not_allowed",
    411: "length_required",
    413: "request_too_large",
    415: "unsupported_media_type",
    429: "rate_limit_exceeded",
}


class BodyTooLarge(RequestRefused):
    """The body is larger than this server takes."""

    code = "request_too_large"
    http_status = 413


class LengthRequired(RequestRefused):
    """The request does not say how long its body is."""

    code = "length_required"
    http_status = 411


class UnsupportedBody(RequestRefused):
    """The body is in a form that is not read here."""

    code = "unsupported_media_type"
    http_status = 415


class Problem:
    """What is said to the client: `status`, the JSON of `body`, and `headers`.

    `work_done`: part of the answer was made already, so that an automatic retry would do all of it again. Nor is
    what was cancelled to be retried: whoever ended it would have to do so again and again.
    """

    def __init__(self, error: BaseException, *, work_done: bool = False) -> None:
        self.status, self.code, self.message, self.param = _describe(error)
        self.headers: dict[str, str] = {}
        if work_done or isinstance(error, _FINAL):
            self.headers["x-should-retry"] = "false"
        elif retry_after := _retry_after(error):
            self.headers["Retry-After"] = str(retry_after)
        if isinstance(error, exceptions.AuthenticationFailed | exceptions.NotAuthenticated):
            self.headers["WWW-Authenticate"] = "Bearer"

    @property
    def body(self) -> dict[str, Any]:
        kind = SERVER if self.status >= 500 else "rate_limit_error" if self.status == 429 else INVALID
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JsonResponse:
        response = JsonResponse(self.body, status=self.status, headers=self.headers)
        # `report` has logged what is worth it; Django would log every 503 of a full mesh as an error.
        response._has_been_logged = True  # type: ignore[attr-defined]
        return response


def report(error: BaseException, request: HttpRequest | None = None) -> None:
    """Logs what the client is not told; never the request's body or headers, which hold texts and keys."""
    request_id = getattr(request, "request_id", "-")
    if Problem(error).status < 500:
        return
    if isinstance(error, mesh.MeshnetError):
        logger.warning("%s failed with %s: %s", request_id, error.code, error.detail)
        return
    logger.error("%s failed inside the head.", request_id, exc_info=error)


def of_status(status: int) -> Problem:
    """The problem of an answer that has a status and no JSON: something below the views gave it."""
    if status >= 500:
        problem = Problem(mesh.MeshnetError())
    else:
        code = _BY_STATUS.get(status, "bad_request")
        problem = Problem(RequestRefused("The request's path, host or headers cannot be served.", code=code))
    problem.status = status
    return problem


def _describe(error: BaseException) -> tuple[int, str, str, str | None]:
    """Status, code, message and param."""
    if isinstance(error, RequestRefused):
        return error.http_status, error.code, error.detail, error.param
    if isinstance(error, mesh.MeshnetError):
        return (*_describe_fault(error), None)
    if isinstance(error, exceptions.AuthenticationFailed | exceptions.NotAuthenticated):
        return 401, "invalid_api_key", str(error.detail), None
    if isinstance(error, exceptions.APIException):
        code = _BY_STATUS.get(error.status_code, "bad_request" if error.status_code < 500 else "internal")
        return error.status_code, code, str(error.detail), None
    if isinstance(error, Http404):
        return 404, "unknown_url", "There is nothing under this URL.", None
    if isinstance(error, PermissionDenied):
        return 403, "permission_denied", "This is not allowed.", None
    if isinstance(error, SuspiciousOperation | UnreadablePostError):
        return 400, "bad_request", "The request is malformed or was cut off.", None
    return 500, "internal", "The server failed; its log says why.", None


def _describe_fault(error: mesh.MeshnetError) -> tuple[int, str, str]:
    """Of something that is wrong inside the mesh: status, code and message."""
    for kind, described in _OF_NODES.items():
        if isinstance(error, kind):
            return described
    if error.http_status < 500:
        return _REFUSED_BY_NODE
    # The class's own words: the detail may name addresses.
    return error.http_status, error.code, (inspect.getdoc(type(error)) or error.code).splitlines()[0]


def _retry_after(error: BaseException) -> int | None:
    if isinstance(error, mesh.MeshnetError):
        return error.retry_after
    if isinstance(error, exceptions.Throttled):
        wait: float | None = getattr(error, "wait", None)  # the stubs do not know it
        return None if wait is None else max(1, round(wait))
    return None
