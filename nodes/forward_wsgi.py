"""Steps as a WSGI application of their own, where a server's process holds layers: `POST /forward`, and the request for
a handed-over step's result.

Every step of every session passes here once per hop. Django's request, signals, URL resolver and response would be a
third of what a node does beside computing, and this path needs none of them (docs/performance.md). Everything else that
is asked of a node goes through `views.py`, also another method on this path; both are thin shells over `forward.run`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import socket
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

from nodes import bodies, handover_result, mesh_auth, wire
from nodes.errors import MeshnetError
from nodes.views import error_response, running_node
from nodes.wire import StepHeaders

logger = logging.getLogger(__name__)

#: Linux only: header and body leave together, though the server writes them one after the other.
_CORK: int | None = getattr(socket, "TCP_CORK", None)
_NAMES = {
    name: "HTTP_" + name.upper().replace("-", "_")
    for name in (wire.SESSION, wire.CACHE, wire.PAST_LEN, wire.START_LAYER, wire.END_LAYER, wire.MODEL)
}


#: As in urls.py.
_RESULT = re.compile(r"/sessions/([^/]+)/steps/([^/]+)")


def takes(environ: dict[str, Any]) -> bool:
    """Whether this is a step, or asks for the result of one."""
    method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
    return (method == "POST" and path == "/forward") or (method == "GET" and _RESULT.fullmatch(path) is not None)


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answers a step. A refusal made before its body was read asks for the connection's end, as `views.py` does."""
    was_read = False

    def source(length: int) -> bytes:
        nonlocal was_read
        was_read = True
        data: bytes = environ["wsgi.input"].read(length)
        return data

    try:
        mesh_auth.check(environ.get("HTTP_AUTHORIZATION", ""))
        from nodes import forward  # here: the site imports this module in processes that never compute

        runtime = running_node()
        if asked := _RESULT.fullmatch(environ["PATH_INFO"]):
            query = dict(parse_qsl(environ.get("QUERY_STRING", "")))
            found = json.dumps(handover_result.result(runtime.handing_over, query, *asked.groups())).encode()
            start_response("200 OK", [("Content-Type", wire.JSON_TYPE), ("Content-Length", str(len(found)))])
            return _Corked(environ.get("gunicorn.socket"), found)
        headers = StepHeaders.from_http({name: environ[key] for name, key in _NAMES.items() if key in environ})
        body = bodies.read(
            source,
            given_type=environ.get("CONTENT_TYPE", ""),
            given_length=environ.get("CONTENT_LENGTH", ""),
            content_type=wire.TENSOR_TYPE,
            limit=runtime.max_body_bytes,
        )
        fields, content = forward.run(runtime, headers, body)
    except MeshnetError as error:
        return _refusal(error, environ, start_response, was_read)
    except Exception:
        logger.exception("%s %s failed.", environ["REQUEST_METHOD"], environ["PATH_INFO"])
        return _refusal(MeshnetError("The node failed; its log says why."), environ, start_response, was_read)
    start_response("200 OK", fields)
    return _Corked(environ.get("gunicorn.socket"), content)


def _refusal(
    error: MeshnetError, environ: dict[str, Any], start_response: Callable[..., Any], was_read: bool
) -> Iterable[bytes]:
    response = error_response(error)
    fields = [*response.items(), ("Content-Length", str(len(response.content)))]
    has_body = "HTTP_TRANSFER_ENCODING" in environ or environ.get("CONTENT_LENGTH", "") not in ("", "0")
    if has_body and not was_read:
        fields.append(("Connection", "close"))
    start_response(f"{response.status_code} {HTTPStatus(response.status_code).phrase}", fields)
    return [response.content]


class _Corked:
    """One body on a socket that sends nothing before the server has written all of it."""

    def __init__(self, sock: Any, content: bytes) -> None:
        self._sock = sock
        self._content = content

    def __iter__(self) -> Iterator[bytes]:
        self._cork(1)
        yield self._content

    def close(self) -> None:
        """Called by the server when everything was written."""
        self._cork(0)

    def _cork(self, on: int) -> None:
        if _CORK is not None and self._sock is not None:
            with contextlib.suppress(OSError):  # a socket that is no TCP, or gone
                self._sock.setsockopt(socket.IPPROTO_TCP, _CORK, on)
