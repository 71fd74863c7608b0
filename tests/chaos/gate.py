"""A gate between the head and a node: the node's address as the head knows it, where faults happen at an exact step.

Whoever stands behind the gate may be killed and replaced; the address stays. What a real network does is kept up: a
connection that one side closes is closed on the other, and a node that is not there is a connection that breaks.
"""

from __future__ import annotations

import contextlib
import re
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.processes import free_port

#: Carries a request to the node and gives its answer; raises Broken when none comes.
Forward = Callable[[], bytes]
#: What happens to one request: gets `forward`, gives what the head gets; None breaks the connection off.
Meddle = Callable[[Forward], bytes | None]


class Broken(Exception):
    """One of the two sides has gone."""


@dataclass
class Gate:
    """Forwards whole HTTP messages to the node at `target`, a port; `watch` may take a request in hand.

    `requests` counts method and path of what came, ids left out.
    """

    target: int
    port: int = 0
    watch: Callable[[Gate, str], Meddle | None] = lambda gate, request: None
    requests: dict[str, int] = field(default_factory=dict)
    #: Whether a connection stays open after half an answer, in silence.
    keeps_half_open: bool = False
    _server: socket.socket | None = None
    _thread: threading.Thread | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def open(self) -> None:
        """Listens; from the second time on at the same port."""
        self.port = self.port or free_port()
        server = self._server = socket.create_server(("127.0.0.1", self.port), backlog=256)

        def accept() -> None:
            with contextlib.suppress(OSError):  # shut
                while True:
                    client, _ = server.accept()
                    threading.Thread(target=self.handle, args=(client,), daemon=True).start()

        self._thread = threading.Thread(target=accept, daemon=True)
        self._thread.start()

    def shut(self) -> None:
        """New connections are refused, as by a machine on which nothing listens. Those that are there go on."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown(socket.SHUT_RDWR)
            self._server.close()
            self._thread.join()
            self._server = self._thread = None

    def handle(self, client: socket.socket) -> None:
        """One connection of the head's, on a thread of its own, until either side ends it."""
        try:
            with socket.create_connection(("127.0.0.1", self.target), timeout=5) as node:
                node.settimeout(None)
                for sock in (client, node):
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while self._exchange(client, node):
                    pass
        except (Broken, OSError):
            reset(client)
        finally:
            client.close()

    def _exchange(self, client: socket.socket, node: socket.socket) -> bool:
        """One request and its answer; False at the connection's end."""
        if _readable(client, node) is node:
            return False  # the node ended a connection that nobody was using
        request = read_message(client)
        if not request:
            return False
        name = _name(request)
        with self._lock:
            self.requests[name] = self.requests.get(name, 0) + 1

        def forward() -> bytes:
            node.sendall(request)
            if _readable(client, node) is client:
                raise Broken  # the head waits no longer
            answer = read_message(node)
            if not answer:
                raise Broken
            return answer

        meddle = self.watch(self, name)
        answer = meddle(forward) if meddle else forward()
        if answer is None:
            raise Broken
        client.sendall(answer)
        if not is_whole(answer) and self.keeps_half_open:
            _readable(client, node)
        return is_whole(answer)


def reset(sock: socket.socket) -> None:
    """Ends a connection by RST, as when the machine behind it is gone."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def read_message(sock: socket.socket) -> bytes:
    """One HTTP message, by its length or its chunks; empty at the end of the connection."""
    data = b""
    while not is_whole(data):
        piece = sock.recv(65536)
        if not piece:
            return b""
        data += piece
    return data


def is_whole(message: bytes) -> bool:
    """Whether the message has all that its head promises."""
    head, end, body = message.partition(b"\r\n\r\n")
    if not end:
        return False
    if re.search(rb"(?i)\r\ntransfer-encoding: *chunked", head):
        return body.endswith(b"0\r\n\r\n")
    found = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    return len(body) >= (int(found[1]) if found else 0)


def _name(request: bytes) -> str:
    method, path, _ = request.split(b" ", 2)
    parts = path.decode().split("/")
    if parts[1] == "sessions" and len(parts) > 2 and parts[2] != "evict":
        parts[2] = "<id>"
    return f"{method.decode()} {'/'.join(parts)}"


def _readable(client: socket.socket, node: socket.socket) -> socket.socket:
    """Waits for either side. The one that has something to say, or has gone."""
    poll = select.poll()
    poll.register(client, select.POLLIN)
    poll.register(node, select.POLLIN)
    ready = {descriptor for descriptor, _ in poll.poll()}
    return node if node.fileno() in ready else client


@contextmanager
def gate_to(port: int) -> Iterator[Gate]:
    gate = Gate(port)
    gate.open()
    try:
        yield gate
    finally:
        gate.shut()
