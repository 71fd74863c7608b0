"""Whether the client is still there, told by its socket.

A write would notice it only about two writes later, a silent phase or an answer in one piece not at all.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Mapping
from typing import Any

#: The kernel's own note that the other side sends no more, whatever lies unread before it. Under TLS nothing else can
#: tell: what lies there is not the client's own bytes. Only Linux has it; elsewhere a client that closes is not seen.
_CLOSED_THERE = getattr(select, "POLLRDHUP", 0)


def watch(environ: Mapping[str, Any]) -> Callable[[], bool]:
    """A function that tells whether this request's client has gone; always False where that cannot be seen.

    It takes nothing off the socket and never waits. Clients that shut down their sending side while they wait
    for the answer count as gone.
    """
    sock = environ.get("gunicorn.socket")
    if not isinstance(sock, socket.socket):
        return lambda: False
    return lambda: _has_gone(sock)


def _has_gone(sock: socket.socket) -> bool:
    poller = select.poll()
    try:
        poller.register(sock, _CLOSED_THERE)  # errors and resets are always told
    except ValueError:  # closed on this side already
        return True
    return bool(poller.poll(0))
