"""Draining over a real socket: what the node is told, and what counts as an answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from meshsite.draining import drain, sessions_held
from tests.processes import free_port


class Node(HTTPServer):
    """Answers everything with `status` and `body`, and notes what it was asked."""

    status, body = 200, b"{}"

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.heard: list[tuple[str, str, str | None]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Node

    def do_GET(self) -> None:  # the server's name for it
        self.server.heard.append((self.command, self.path, self.headers["Authorization"]))
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(self.server.body)

    do_POST = do_GET  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture
def node() -> Iterator[Node]:
    with Node() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_it_tells_the_node_with_the_secret(node: Node) -> None:
    assert drain(node.url, "s")
    assert node.heard == [("POST", "/drain", "Bearer s")]


def test_it_counts_the_sessions(node: Node) -> None:
    node.body = b'{"sessions": [{"id": "a"}, {"id": "b"}]}'
    assert sessions_held(node.url, "s") == 2
    assert node.heard == [("GET", "/sessions", "Bearer s")]
    node.body = b'{"sessions": []}'
    assert sessions_held(node.url, "s") == 0


@pytest.mark.parametrize(
    ("status", "body"), [(503, b"{}"), (200, b"not JSON"), (200, b"[]"), (200, b'{"sessions": 3}')]
)
def test_what_cannot_be_understood_is_no_number(node: Node, status: int, body: bytes) -> None:
    node.status, node.body = status, body
    assert sessions_held(node.url, "s") is None


def test_a_node_that_is_not_there_has_heard_nothing() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert not drain(url, "s")
    assert sessions_held(url, "s") is None
