"""The node's HTTP endpoints: thin shells over `NodeRuntime`. The only place where a node's errors become HTTP.

Plain Django views: REST framework adds 0.2 to 0.6 ms to every step (DESIGN fact 11).
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt

from nodes import bodies, handover_result, wire
from nodes.errors import (
    BadRequest,
    MeshnetError,
    MethodNotAllowed,
    NotFound,
    NotReady,
)
from nodes.mesh_auth import authorize
from nodes.wire import StepHeaders

if TYPE_CHECKING:
    from nodes.runtime import NodeRuntime

logger = logging.getLogger(__name__)

View = Callable[..., HttpResponse]

#: Bodies of the JSON endpoints are lists of session ids at most.
MAX_JSON_BYTES = 1024 * 1024


def endpoint(*methods: str) -> Callable[[View], View]:
    """Wraps a view of the mesh: checks method and secret before the body is read, and turns errors into JSON."""

    def wrap(view: View) -> View:
        @csrf_exempt
        @functools.wraps(view)
        def wrapped(request: HttpRequest, **kwargs: str) -> HttpResponse:
            try:
                authorize(request)
                if request.method not in methods:
                    raise MethodNotAllowed(f"{request.method} is not supported here; use {' or '.join(methods)}.")
                response = view(request, **kwargs)
            except MeshnetError as error:
                response = error_response(error)
                if isinstance(error, MethodNotAllowed):
                    response["Allow"] = ", ".join(methods)
            except Exception:
                logger.exception("%s %s failed.", request.method, request.path)
                response = error_response(MeshnetError("The node failed; its log says why."))
            # Without a length gunicorn would send chunks: more bytes and one more write for every step.
            response["Content-Length"] = str(len(response.content))
            return _closing(request, response)

        return wrapped

    return wrap


def error_response(error: MeshnetError) -> JsonResponse:
    response = JsonResponse(error.as_json(), status=error.http_status)
    # Django would log every 503 as an error, and chats that wait for a slot ask often. What is a fault was logged
    # where it happened.
    response._has_been_logged = True  # type: ignore[attr-defined]
    if error.retry_after is not None:
        response["Retry-After"] = str(error.retry_after)
    if error.http_status == 401:
        response["WWW-Authenticate"] = 'Bearer realm="meshnet"'
    return response


@endpoint("POST")
def forward(request: HttpRequest) -> HttpResponse:
    """One step of one generation through this node's layers. Servers answer it by `forward_wsgi` instead."""
    from nodes import forward as steps  # here: urls import this module in processes that never compute

    runtime = running_node()
    headers = StepHeaders.from_http(request.headers)
    fields, content = steps.run(runtime, headers, read_body(request, wire.TENSOR_TYPE, runtime.max_body_bytes))
    return HttpResponse(content, headers=dict(fields))


@endpoint("GET")
def sessions(request: HttpRequest) -> HttpResponse:
    """The live sessions, the store's limits and its statistics."""
    return JsonResponse(running_node().sessions())


@endpoint("DELETE")
def session(request: HttpRequest, session_id: str) -> HttpResponse:
    """The head is done with a session."""
    if not wire.is_session_id(session_id):
        raise NotFound("This is not the id of a session.")
    return JsonResponse({"released": running_node().release(session_id)})


@endpoint("GET")
def result(request: HttpRequest, session_id: str, nonce: str) -> HttpResponse:
    """What a handed-over step gave, as soon as it is there; `wait` is how many seconds the head can wait."""
    return JsonResponse(handover_result.result(running_node().handing_over, request.GET.dict(), session_id, nonce))


@endpoint("POST")
def evict(request: HttpRequest) -> HttpResponse:
    """An operator takes sessions away: `ids`, or `idle_longer_than` seconds, or `all`.

    With `by: "head"` a head gives slots back (`ids` only) while it waits for room on another node.
    """
    runtime = running_node()
    body = json_object(read_body(request, wire.JSON_TYPE, MAX_JSON_BYTES))
    unknown = set(body) - {"ids", "idle_longer_than", "all", "by"}
    if unknown:
        raise BadRequest(f"Unknown field {sorted(unknown)[0]!r:.80}.")
    ids, idle, everything = body.get("ids"), body.get("idle_longer_than"), body.get("all", False)
    if ids is not None and not (isinstance(ids, list) and all(isinstance(item, str) for item in ids)):
        raise BadRequest("ids must be a list of session ids.")
    if idle is not None and (isinstance(idle, bool) or not isinstance(idle, int | float) or not 0 <= idle <= 1e9):
        raise BadRequest("idle_longer_than must be a number of seconds, 0 or more.")
    if not isinstance(everything, bool):
        raise BadRequest("all must be true or false.")
    if body.get("by", "operator") not in ("operator", "head"):
        raise BadRequest("by must be 'operator' or 'head'.")
    if body.get("by") == "head":
        if ids is None or idle is not None or everything:
            raise BadRequest("A head gives back sessions by ids only.")
        return JsonResponse(runtime.give_back(ids))
    return JsonResponse(runtime.evict(ids=ids, idle_longer_than=idle, everything=everything))


@endpoint("PATCH")
def limits(request: HttpRequest) -> HttpResponse:
    """New limits until the node's restart: `ttl_seconds`, `max_sessions`, `max_bytes`."""
    runtime = running_node()
    return JsonResponse(runtime.set_limits(json_object(read_body(request, wire.JSON_TYPE, MAX_JSON_BYTES))))


@endpoint("POST", "DELETE")
def drain(request: HttpRequest) -> HttpResponse:
    """POST: no new sessions, running ones go on. DELETE: new ones are taken again."""
    runtime = running_node()
    if request.method == "POST":
        runtime.drain()
    else:
        runtime.undrain()
    return JsonResponse({"state": "draining" if runtime.is_draining else "ready"})


@endpoint("GET")
def status(request: HttpRequest) -> HttpResponse:
    """What this node is and serves."""
    return JsonResponse(running_node().status())


def livez(request: HttpRequest) -> HttpResponse:
    """The process answers. Open: says nothing about the mesh."""
    return JsonResponse({"status": "ok"})


def readyz(request: HttpRequest) -> HttpResponse:
    """The node takes new sessions. Open: says nothing about the mesh."""
    try:
        draining = running_node().is_draining
    except NotReady as error:
        return error_response(error)
    return JsonResponse({"status": "draining" if draining else "ok"}, status=503 if draining else 200)


def metrics(request: HttpRequest) -> HttpResponse:
    """The node's numbers for Prometheus. Open on this machine, elsewhere with a token of its own."""
    from nodes import metrics as node_metrics  # here: what decides who may read imports this module
    from nodes import metrics_access

    return metrics_access.answer(request, lambda: node_metrics.own_exposition(running_node()))


def not_found(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return _closing(request, error_response(NotFound("There is no such endpoint on a node.")))


def server_error(request: HttpRequest) -> HttpResponse:
    return error_response(MeshnetError("The node failed; its log says why."))


def running_node() -> NodeRuntime:
    """This process's node. Raises NotReady while it loads, and in a head without layers."""
    runtime: NodeRuntime | None = apps.get_app_config("nodes").runtime  # type: ignore[attr-defined]
    if runtime is None:
        raise NotReady()
    return runtime


def _closing(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    """The response, told to close the connection when it was made before the request's body was read.

    The rest of the body would be taken for the next request; wsgi.py acts on the header and drains a part of it.
    """
    has_body = "Transfer-Encoding" in request.headers or request.META.get("CONTENT_LENGTH", "") not in ("", "0")
    if has_body and not request._read_started:  # type: ignore[attr-defined]
        response["Connection"] = "close"
    return response


def read_body(request: HttpRequest, content_type: str, limit: int) -> bytes:
    """Reads the body, at most `limit` bytes. Raises UnsupportedMediaType, LengthRequired or PayloadTooLarge."""
    return bodies.read(
        request.read,  # its UnreadablePostError is an OSError
        given_type=request.content_type or "",
        given_length=str(request.META.get("CONTENT_LENGTH") or ""),
        content_type=content_type,
        limit=limit,
    )


def json_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a body. Raises BadRequest."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise BadRequest("The body is not JSON in UTF-8.") from None
    if not isinstance(value, dict):
        raise BadRequest("The body must be a JSON object.")
    return value
