from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from meshsite.bench.proxy import Relay, relays
from tests.processes import wait_until


@pytest.fixture
def echo() -> Iterator[str]:
    """A server that sends back what it is sent, twice; its URL."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = server.accept()
                threading.Thread(target=answer, args=(client,), daemon=True).start()

    def answer(client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            while data := client.recv(65536):
                client.sendall(data * 2)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.getsockname()[1]}"
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()


def ask(relay: Relay, data: bytes) -> bytes:
    port = urlsplit(relay.url).port
    with socket.create_connection(("127.0.0.1", port or 0), timeout=10) as sock:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := sock.recv(65536):
            answer += piece
    return answer


def test_bytes_pass_unchanged_and_are_counted_both_ways(echo: str) -> None:
    with relays([echo]) as (relay,):
        data = bytes(range(256)) * 4000
        answer = ask(relay, data)
        assert len(answer) == 2 * len(data)
        assert answer[: 1 << 16] == (data * 2)[: 1 << 16] or answer.count(data[:256]) == 8000
        assert relay.count == 3 * len(data)


def test_a_delay_holds_each_way_for_half_of_the_round_trip(echo: str) -> None:
    with relays([echo], 200.0) as (relay,):
        begun = time.monotonic()
        assert ask(relay, b"x") == b"xx"
        assert time.monotonic() - begun >= 0.2


def test_one_relay_for_each_node(echo: str) -> None:
    with relays([echo, echo]) as (one, other):
        assert one.url != other.url
        ask(one, b"abc")
        assert (one.count, other.count) == (9, 0)


def test_closing_ends_connections_and_threads(echo: str) -> None:
    with relays([echo]) as (relay,):
        sock = socket.create_connection(("127.0.0.1", urlsplit(relay.url).port or 0), timeout=10)
        sock.sendall(b"x")
        assert sock.recv(10)
    with sock, contextlib.suppress(ConnectionError):
        assert sock.recv(10) == b""
    wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name == "bench-relay"], 10)


def test_a_node_that_is_not_there_ends_the_connection() -> None:
    with relays(["http://127.0.0.1:9"]) as (relay,):
        sock = socket.create_connection(("127.0.0.1", urlsplit(relay.url).port or 0), timeout=10)
        # The relay may be faster than a test that still sends, and a reset then hides the end: nothing is sent.
        with sock:
            assert sock.recv(10) == b""
