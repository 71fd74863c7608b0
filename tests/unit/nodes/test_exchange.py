"""One request and its answer over a real socket; who answers is a few lines of this test."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from nodes.connections import NodePool
from nodes.exchange import Reply, TooLong, exchange

Serve = Callable[[bytes], NodePool]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Name: value\r\n\r\nhello"

CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"


@pytest.fixture
def serve() -> Iterator[Serve]:
    """A pool to a server that answers each request of each connection with these bytes, and then closes if they do not
    say how long they are.
    """
    with ExitStack() as stack:

        def start(answer: bytes) -> NodePool:
            server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

            def run() -> None:
                while True:
                    try:
                        sock, _ = server.accept()
                    except OSError:
                        return
                    accepted.append(sock)
                    with sock:
                        while True:
                            request = b""
                            while not request.endswith(b"\r\n\r\n"):
                                if not (piece := sock.recv(65536)):
                                    break
                                request += piece
                            if not request:
                                break
                            sock.sendall(answer)
                            if answer not in (OK, CHUNKS):
                                break

            accepted: list[socket.socket] = []
            threading.Thread(target=run, daemon=True).start()
            pool = NodePool("127.0.0.1", server.getsockname()[1])
            pool.accepted = accepted  # type: ignore[attr-defined]
            stack.callback(pool.close)
            stack.callback(server.shutdown, socket.SHUT_RDWR)
            return pool

        yield start


def ask(pool: NodePool, longest: int = 100) -> Reply:
    return exchange(pool, "GET", "/", None, {}, connect_timeout=5, timeout=5, longest=longest)


def test_an_answer_is_read_whole_and_its_connection_is_used_again(serve: Serve) -> None:
    pool = serve(OK)
    for _ in range(3):
        reply = ask(pool)
        assert (reply.status, reply.headers["x-name"], reply.data) == (200, "value", b"hello")
    assert len(pool.accepted) == 1  # type: ignore[attr-defined]


def test_an_answer_in_chunks_is_read_whole(serve: Serve) -> None:
    pool = serve(CHUNKS)
    for _ in range(3):
        assert ask(pool).data == b"hello"
    assert len(pool.accepted) == 1  # type: ignore[attr-defined]


def test_an_answer_until_the_connections_end_is_read_whole(serve: Serve) -> None:
    pool = serve(b"HTTP/1.0 200 OK\r\n\r\nhello")
    assert ask(pool).data == b"hello"
    assert ask(pool).data == b"hello"


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel",
        b"nonsense\r\n\r\n",
        b"",
    ],
)
def test_an_answer_that_breaks_off_or_is_none_is_an_error_and_the_next_one_is_not(serve: Serve, answer: bytes) -> None:
    pool = serve(answer)
    for _ in range(2):
        with pytest.raises((http.client.HTTPException, OSError)):
            ask(pool)


def test_an_answer_that_is_too_long_is_not_read_to_its_end(serve: Serve) -> None:
    pool = serve(OK)
    with pytest.raises(TooLong):
        ask(pool, longest=4)
    assert ask(pool, longest=5).data == b"hello"
    assert len(pool.accepted) == 2  # type: ignore[attr-defined]
