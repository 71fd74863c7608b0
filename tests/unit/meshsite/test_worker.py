"""A thread of the server stays with the connection that it has just answered, unless it is needed elsewhere."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from meshsite import worker
from meshsite.worker import Worker


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "STAY_SECONDS", 60.0)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def made(threads: int = 4) -> Any:
    server: Any = object.__new__(Worker)
    server.cfg = SimpleNamespace(threads=threads)
    server.alive = True
    server.tpool = SimpleNamespace(_work_queue=SimpleQueue())
    server._lock = threading.Lock()
    server._staying = 0
    return server


def connection(sock: socket.socket, buffered: bytes = b"") -> Any:
    unreader = SimpleNamespace(buf=SimpleNamespace(getvalue=lambda: buffered))
    return SimpleNamespace(sock=sock, is_http2=False, parser=SimpleNamespace(unreader=unreader))


def test_the_next_request_is_seen_at_once(pair: tuple[socket.socket, socket.socket]) -> None:
    server = made()
    pair[1].send(b"G")
    assert server._next_comes(connection(pair[0]))
    assert server._staying == 0


def test_a_client_that_closes_is_seen_too(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[1].close()
    assert made()._next_comes(connection(pair[0]))


def test_a_request_that_waits_for_a_thread_gets_this_one(pair: tuple[socket.socket, socket.socket]) -> None:
    server = made()
    server.tpool._work_queue.put("a request")
    assert not server._next_comes(connection(pair[0]))
    assert server._staying == 0


def test_one_that_comes_meanwhile_too(pair: tuple[socket.socket, socket.socket]) -> None:
    server = made()
    staying = threading.Thread(target=server._next_comes, args=(connection(pair[0]),))
    staying.start()
    server.tpool._work_queue.put("a request")
    staying.join(30)
    assert not staying.is_alive()


def test_half_of_the_threads_never_stay(pair: tuple[socket.socket, socket.socket]) -> None:
    server = made(threads=4)
    pair[1].send(b"G")
    server._staying = 2
    assert not server._next_comes(connection(pair[0]))
    server._staying = 1
    assert server._next_comes(connection(pair[0]))


def test_a_worker_that_leaves_waits_for_nobody(pair: tuple[socket.socket, socket.socket]) -> None:
    server = made()
    server.alive = False
    assert not server._next_comes(connection(pair[0]))


def test_what_was_read_ahead_goes_the_usual_way(pair: tuple[socket.socket, socket.socket]) -> None:
    assert not made()._next_comes(connection(pair[0], buffered=b"GET"))


def test_the_time_ends(pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "STAY_SECONDS", 0.0)
    assert not made()._next_comes(connection(pair[0]))
