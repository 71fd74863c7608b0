"""What can happen to a node at one step. `before`: the node never sees the request; `after`: it has carried it out."""

from __future__ import annotations

import json

from tests.chaos.gate import Forward
from tests.chaos.mesh import Fault, Replica, Stage

_BODY = json.dumps({"error": "compute_failed", "detail": "The step failed."}).encode()
_FAILED = b"HTTP/1.1 500 Internal Server Error\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
    len(_BODY),
    _BODY,
)
#: As something between head and node says it.
_FOREIGN = b"HTTP/1.1 500 Internal Server Error\r\nContent-Type: text/html\r\nContent-Length: 13\r\n\r\n<h1>500</h1>\n"
_BEGUN = b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: 500\r\n\r\n" + bytes(99)


def kill(replica: Replica, forward: Forward) -> bytes | None:
    replica.served.kill()
    return forward()


def stop(replica: Replica, forward: Forward) -> bytes | None:
    replica.suspend()
    return forward()


def reset_before(replica: Replica, forward: Forward) -> None:
    return None


def reset_after(replica: Replica, forward: Forward) -> None:
    forward()


def half_before(replica: Replica, forward: Forward) -> bytes:
    return _BEGUN


def half_after(replica: Replica, forward: Forward) -> bytes:
    return forward()[:-7]


def error_before(replica: Replica, forward: Forward) -> bytes:
    return _FAILED


def error_after(replica: Replica, forward: Forward) -> bytes:
    forward()
    return _FOREIGN


def restart(stage: Stage) -> Fault:
    """The node is killed, and an empty one stands in its place before the request comes."""

    def swap(replica: Replica, forward: Forward) -> bytes | None:
        stage.swap(replica)
        return forward()

    return swap
