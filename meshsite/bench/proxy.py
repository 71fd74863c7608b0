"""Relays between the head and nodes that count bytes and, where told, delay them: a far network in user space.

Each direction of a connection has a reader and a writer: what comes in is stamped with the time when it is due, so
that a delay costs no throughput. Threads sleep more exactly than an event loop, whose timers are rounded up to 1 ms.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

CHUNK = 1 << 18


class Relay:
    """One listening port before one node. `delay_ms` is the round trip's: half of it each way."""

    def __init__(self, url: str, delay_ms: float = 0.0) -> None:
        parts = urlsplit(url)
        self._target = (parts.hostname or "", parts.port or 0)
        self._one_way = delay_ms / 2e3
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        self._lock = threading.Lock()
        self._count = 0
        self._sockets: set[socket.socket] = set()
        self._accepting = _start(self._accept)

    @property
    def count(self) -> int:
        """Bytes relayed so far, both ways together, headers included."""
        with self._lock:
            return self._count

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        with self._lock:
            sockets = list(self._sockets)
        for sock in sockets:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._accepting.join()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed at the end
            while True:
                client, _ = self._server.accept()
                try:
                    node = socket.create_connection(self._target)
                except OSError:
                    client.close()
                    continue
                for sock in (client, node):
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._lock:
                    self._sockets |= {client, node}
                _start(self._link, client, node)

    def _link(self, client: socket.socket, node: socket.socket) -> None:
        """One connection, until both directions have ended."""
        with client, node:
            threads = []
            for source, sink in ((client, node), (node, client)):
                line: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
                threads += [_start(self._read, source, line), _start(self._write, sink, line)]
            for thread in threads:
                thread.join()
        with self._lock:
            self._sockets -= {client, node}

    def _read(self, source: socket.socket, line: queue.SimpleQueue[tuple[float, bytes]]) -> None:
        data = b"first"
        while data:
            try:
                data = source.recv(CHUNK)
            except OSError:
                data = b""
            with self._lock:
                self._count += len(data)
            line.put((time.monotonic() + self._one_way, data))

    def _write(self, sink: socket.socket, line: queue.SimpleQueue[tuple[float, bytes]]) -> None:
        """Until the empty chunk, which stands for the end; then the other side is told."""
        while True:
            due, data = line.get()
            time.sleep(max(0.0, due - time.monotonic()))
            with contextlib.suppress(OSError):  # the other direction ends too, and with it whoever writes there
                if data:
                    sink.sendall(data)
                else:
                    sink.shutdown(socket.SHUT_WR)
            if not data:
                return


def _start(target: Callable[..., None], *args: Any) -> threading.Thread:
    thread = threading.Thread(target=target, args=args, name="bench-relay", daemon=True)
    thread.start()
    return thread


@contextlib.contextmanager
def relays(urls: Sequence[str], delay_ms: float = 0.0) -> Iterator[list[Relay]]:
    """A relay before each node, in order; closed at the end."""
    made: list[Relay] = []
    try:
        for url in urls:
            made.append(Relay(url, delay_ms))
        yield made
    finally:
        for relay in made:
            relay.close()
