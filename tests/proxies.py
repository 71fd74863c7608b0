"""A proxy between a head and a node, which counts what goes over the wire and can spoil single answers."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

#: What to do with an answer, by its bytes: what to send on; None breaks the connection off instead.
Spoil = Callable[[bytes], bytes | None]


@dataclass
class Exchange:
    """One request and its answer, in bytes with headers."""

    request: bytes
    answer: bytes

    @property
    def path(self) -> str:
        return self.request.split(b" ", 2)[1].decode()

    @property
    def size(self) -> int:
        return len(self.request) + len(self.answer)


@dataclass
class Proxy:
    """Forwards whole HTTP messages. `spoil[n]` takes the answer to the n-th `/forward` (from 1) in hand."""

    target: int
    exchanges: list[Exchange] = field(default_factory=list)
    spoil: dict[int, Spoil] = field(default_factory=dict)
    port: int = 0
    delay: Callable[[], object] = lambda: None
    _open: threading.Event = field(default_factory=threading.Event)
    _steps: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __post_init__(self) -> None:
        self._open.set()

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Inside, answers to steps are held back: generations stand still in the middle of their text."""
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()

    @contextmanager
    def slowed(self, seconds: float) -> Iterator[None]:
        """Inside, each step takes so much longer, as on a slow node."""
        never = threading.Event()
        before, self.delay = self.delay, lambda: never.wait(seconds)
        try:
            yield
        finally:
            self.delay = before

    def steps(self) -> list[Exchange]:
        return [exchange for exchange in self.exchanges if exchange.path == "/forward"]

    def handle(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self.target)) as node, contextlib.suppress(OSError):
            while request := read_message(client):
                node.sendall(request)
                answer: bytes | None = read_message(node)
                assert answer is not None
                self.exchanges.append(Exchange(request, answer))
                if self.exchanges[-1].path == "/forward":
                    self._steps += 1
                    self.delay()
                    assert self._open.wait(60), "an answer was held for too long"
                    spoil = self.spoil.pop(self._steps, None)
                    answer = spoil(answer) if spoil else answer
                    if answer is None:
                        return
                client.sendall(answer)
                if spoiled_short(answer):
                    return


def spoiled_short(answer: bytes) -> bool:
    head, _, body = answer.partition(b"\r\n\r\n")
    found = re.search(rb"(?i)content-length: (\d+)", head)
    return found is not None and int(found[1]) != len(body)


def read_message(sock: socket.socket) -> bytes | None:
    """One HTTP message with a Content-Length, or None at the end of the connection."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = sock.recv(65536)
        if not piece:
            return None
        data += piece
    head = data.partition(b"\r\n\r\n")[0]
    found = re.search(rb"(?i)content-length: (\d+)", head)
    whole = len(head) + 4 + (int(found[1]) if found else 0)
    while len(data) < whole:
        piece = sock.recv(65536)
        if not piece:
            return None
        data += piece
    return data


@contextmanager
def proxy_to(port: int) -> Iterator[Proxy]:
    proxy = Proxy(port)
    server = socket.create_server(("127.0.0.1", 0))
    proxy.port = server.getsockname()[1]

    def accept() -> None:
        with contextlib.suppress(OSError):  # closed at the end
            while True:
                client, _ = server.accept()
                threading.Thread(target=proxy.handle, args=(client,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()
