"""The WSGI application of every role, with one correction for gunicorn.

gunicorn ignores a `Connection: close` that an application sets. A refusal that was sent before the body was read
(401, 413) must close the connection, else the unread body would be taken for the next request; and it must take a
bounded part of that body off the socket first, else the client sees a reset instead of the answer.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from typing import Any

from django.core.wsgi import get_wsgi_application

#: How much of a refused body is read and thrown away.
DRAIN_BYTES = 1024 * 1024
#: Longest silence while draining, in seconds; a client that stalls is cut off.
DRAIN_SECONDS = 1.0

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "meshsite.settings")
_django = get_wsgi_application()


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
        if any(name.lower() == "connection" and value.lower() == "close" for name, value in headers):
            response = getattr(start_response, "__self__", None)  # gunicorn's Response; absent under other servers
            if hasattr(response, "force_close"):
                _drain(environ)
                response.force_close()
            # Hop-by-hop headers are the server's to send (PEP 3333).
            headers = [pair for pair in headers if pair[0].lower() != "connection"]
        return start_response(status, headers, exc_info) if exc_info else start_response(status, headers)

    return _django(environ, start)


def _drain(environ: dict[str, Any]) -> None:
    sock = environ.get("gunicorn.socket")
    with contextlib.suppress(OSError, ValueError):
        if sock is not None:
            sock.settimeout(DRAIN_SECONDS)
        left = min(int(environ.get("CONTENT_LENGTH") or 0), DRAIN_BYTES)
        while left > 0:
            piece = environ["wsgi.input"].read(min(left, 65536))
            if not piece:
                break
            left -= len(piece)
