"""Case E05: headers that look like ours, come twice or hold what no header of ours may, on each kind of server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from django.apps import apps
from django.core.handlers.wsgi import WSGIHandler
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
from django.test import Client

from nodes import wire
from tests import processes
from tests.toy_mesh import ToyMesh

#: Header lines, and what the answer says of them.
LINES = {
    "an underscore": (["X_Meshnet_Session: " + "s" * 22, "X-Meshnet-Cache: prefill"], wire.SESSION),
    "two sessions": (["X-Meshnet-Session: " + letter * 22 for letter in "ab"], wire.SESSION),
    "one session twice": (["X-Meshnet-Session: " + "a" * 22] * 2, wire.SESSION),
    "two lengths": (["X-Meshnet-Past-Len: 12"] * 2, wire.PAST_LEN),
    "dots": (["X-Meshnet-Session: ../../../../etc/passwd..."], wire.SESSION),
    "markup": (["X-Meshnet-Session: <script>alert(1)</script>"], wire.SESSION),
    "beyond ASCII": (["X-Meshnet-Session: " + "é" * 22], wire.SESSION),
    "a tab": (["X-Meshnet-Session: aaaaaaaaaaa\taaaaaaaaaaaa"], wire.SESSION),
}
Send = Callable[[list[str]], bytes]


def http_request(lines: list[str]) -> bytes:
    head = [
        "POST /forward HTTP/1.1",
        "Host: 127.0.0.1",
        f"Authorization: Bearer {processes.SECRET}",
        f"Content-Type: {wire.TENSOR_TYPE}",
        "Content-Length: 0",
        "Connection: close",
        *lines,
    ]
    return "\r\n".join([*head, "", ""]).encode()


def exchange(port: int, sent: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
        sock.sendall(sent)
        answer = b""
        while piece := sock.recv(65536):
            answer += piece
        return answer


@pytest.fixture
def node_here(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process answers as a node whose model is never reached."""
    settings.ROOT_URLCONF, settings.MIDDLEWARE, settings.MESHNET_SECRET = "meshsite.urls_node", [], processes.SECRET
    settings.ALLOWED_HOSTS = ["*"]
    monkeypatch.setattr(apps.get_app_config("nodes"), "runtime", SimpleNamespace(max_body_bytes=1000))


@pytest.fixture(params=["gunicorn", "runserver"])
def send(request: pytest.FixtureRequest) -> Iterator[Send]:
    if request.param == "gunicorn":
        mesh: ToyMesh = request.getfixturevalue("toy_mesh")
        yield lambda lines: exchange(mesh.nodes[0].port, http_request(lines))
        return
    request.getfixturevalue("node_here")
    with ThreadedWSGIServer(("127.0.0.1", 0), WSGIRequestHandler) as server:
        server.set_app(WSGIHandler())
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield lambda lines: exchange(server.server_address[1], http_request(lines))
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("name", LINES)
def test_e05_a_look_alike_is_refused_by_the_headers_name(send: Send, name: str) -> None:
    lines, named = LINES[name]
    answer = send(lines)
    assert answer.partition(b"\r\n")[0].endswith(b"400 Bad Request"), answer
    assert named.encode() in answer
    assert b"<script>" not in answer


def test_e05_a_nul_or_a_broken_line_is_refused_by_the_server(send: Send) -> None:
    for lines in (["X-Meshnet-Session: aaa\x00aaa"], ["X-Meshnet-Session: aaa", " continued"]):
        assert b" 400 " in send(lines).partition(b"\r\n")[0]


@pytest.mark.usefixtures("node_here")
@pytest.mark.parametrize(
    "value", ["a" * 22 + "," + "b" * 22, "../" * 10, "<script>" * 3, "\x00" * 22, "é" * 22, "a\r\nb"]
)
def test_e05_the_test_client_meets_the_same_refusals(value: str) -> None:
    headers = {wire.SESSION: value, "Authorization": f"Bearer {processes.SECRET}"}
    answer = Client().post("/forward", b"", content_type=wire.TENSOR_TYPE, headers=headers)
    assert answer.status_code == 400
    assert wire.SESSION in answer.json()["detail"]
