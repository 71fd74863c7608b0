"""Whether the client is still there, told by its socket.

A write would notice it only about two writes later, a silent phase or an answer in one piece not at all.
"""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Callable, Mapping
from typing import Any


def watch(environ: Mapping[str, Any]) -> Callable[[], bool]:
    """A function that tells whether this request's client has gone; always False where that cannot be seen.

    It takes nothing off the socket and never waits. Clients that shut down their sending side while they wait
    for the answer count as gone.
    """
    sock = environ.get("gunicorn.socket")
    # Under TLS the bytes on the socket are not the client's own, and `recv` takes no flags.
    if not isinstance(sock, socket.socket) or isinstance(sock, ssl.SSLSocket):
        return lambda: False
    return lambda: _has_gone(sock)


def _has_gone(sock: socket.socket) -> bool:
    try:
        # Asked first, since Python waits for the socket's own timeout before a `recv`, whatever its flags say.
        readable = select.poll()
        readable.register(sock, select.POLLIN)
        return bool(readable.poll(0)) and sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except (BlockingIOError, InterruptedError):
        return False  # nothing was sent, and nothing was closed
    except (OSError, ValueError):  # ValueError: closed on this side already
        return True
