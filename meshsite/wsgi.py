"""The WSGI application of every role, never without its secrets, and with one correction for gunicorn.

gunicorn ignores a `Connection: close` that an application sets. A refusal that was sent before the body was read
(401, 413) must close the connection, else the unread body would be taken for the next request; and a bounded part of
that body must be taken off the socket first, else the client sees a reset instead of the answer.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.wsgi import get_wsgi_application

#: How much of a refused body is read and thrown away.
DRAIN_BYTES = 1024 * 1024
#: Longest silence while draining, in seconds; a client that stalls is cut off.
DRAIN_SECONDS = 1.0

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "meshsite.settings")
_django = get_wsgi_application()
from nodes import forward_wsgi  # noqa: E402  # its errors and settings are Django's: not before Django is set up

_HOLDS_LAYERS = settings.ROLE in ("node", "all")


def _refuse_without_secrets() -> None:
    """gunicorn's configurations refuse before; this is for `runserver` and for servers that do not read them."""
    from meshsite.checks import problems_before_serving

    if problems := problems_before_serving():
        raise ImproperlyConfigured(" ".join(problems))


_refuse_without_secrets()


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    closes = False

    def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
        nonlocal closes
        if any(name.lower() == "connection" and value.lower() == "close" for name, value in headers):
            # Hop-by-hop headers are the server's to send (PEP 3333).
            headers = [pair for pair in headers if pair[0].lower() != "connection"]
            response: Any = getattr(start_response, "__self__", None)  # gunicorn's Response; None elsewhere
            if hasattr(response, "force_close"):
                response.force_close()
                closes = True
        return start_response(status, headers, exc_info) if exc_info else start_response(status, headers)

    answer = forward_wsgi.application if _HOLDS_LAYERS and forward_wsgi.takes(environ) else _django
    body = answer(environ, start)
    return _Drained(body, environ) if closes else body


class _Drained:
    """A refusal's body. The client has the answer before anything is drained, and need not send a byte for it."""

    def __init__(self, body: Any, environ: dict[str, Any]) -> None:
        self._body = body
        self._environ = environ

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._body)

    def close(self) -> None:
        """Called by the server once everything was sent."""
        if hasattr(self._body, "close"):
            self._body.close()
        with contextlib.suppress(OSError, ValueError):
            self._environ["gunicorn.socket"].settimeout(DRAIN_SECONDS)
            left = min(int(self._environ.get("CONTENT_LENGTH") or 0), DRAIN_BYTES)
            while left > 0:
                piece = self._environ["wsgi.input"].read(min(left, 65536))
                if not piece:
                    break
                left -= len(piece)
