"""Clients that begin a request and stop: they cost a thread for a while, and nobody else anything."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests import processes
from tests.processes import wait_until
from tests.toy_mesh import ToyMesh


def test_half_requests_are_cut_off_and_the_node_goes_on(toy_mesh: ToyMesh, tmp_path: Path) -> None:
    """More half headers and half bodies than the node has threads, with shorter times than those shipped."""
    node = processes.node(tmp_path / "node", toy_mesh.model, "0:1", MESHNET_KV_MAX_SESSIONS="1")
    node.preload = "import meshsite.worker as w; w.SILENCE_SECONDS, w.HEADER_SECONDS = 1.0, 1.0"
    halves = (
        b"POST /forward HTTP/1.1\r\nHost: x\r\n",
        b"POST /forward HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "
        + processes.SECRET.encode()
        + b"\r\nContent-Type: application/octet-stream\r\nContent-Length: 100\r\n\r\nabc",
    )
    with processes.serving(node):
        held = [socket.create_connection(("127.0.0.1", node.port), timeout=20) for _ in range(18)]
        try:
            for index, sock in enumerate(held):
                sock.sendall(halves[index % 2])
            assert wait_until(lambda: processes.call(f"{node.url}/livez", timeout=30)[0] == 200, 30)
            for index, sock in enumerate(held):
                answer = sock.recv(1000)
                assert answer == b"" or (index % 2 and b" 400 " in answer), answer
        finally:
            for sock in held:
                sock.close()


@pytest.mark.parametrize("sent", [b"", b"GARBAGE\r\n\r\n"], ids=["silent", "garbage, and never closed"])
def test_clients_that_only_connect_hold_nobody_up(toy_mesh: ToyMesh, tmp_path: Path, sent: bytes) -> None:
    """More of them than threads. Waits are so long here that an answer cannot come from one that ended."""
    node = processes.node(tmp_path / "node", toy_mesh.model, "0:1", MESHNET_KV_MAX_SESSIONS="1")
    node.preload = "import meshsite.worker as w; w.HEADER_SECONDS = w.HURRIED_SECONDS = w.CLOSING_SECONDS = 600.0"
    with processes.serving(node):
        held = [socket.create_connection(("127.0.0.1", node.port), timeout=20) for _ in range(40)]
        try:
            for sock in held:
                sock.sendall(sent)
            assert processes.call(f"{node.url}/livez", timeout=20)[0] == 200
        finally:
            for sock in held:
                sock.close()


def test_half_headers_are_cut_off_sooner_while_requests_wait(toy_mesh: ToyMesh, tmp_path: Path) -> None:
    node = processes.node(tmp_path / "node", toy_mesh.model, "0:1", MESHNET_KV_MAX_SESSIONS="1")
    node.preload = "import meshsite.worker as w; w.HEADER_SECONDS, w.HURRIED_SECONDS = 600.0, 0.5"
    with processes.serving(node), socket.create_connection(("127.0.0.1", node.port), timeout=20) as alone:
        alone.sendall(b"GET /livez HTTP/1.1\r\n")
        assert processes.call(f"{node.url}/livez", timeout=20)[0] == 200
        alone.sendall(b"Host: x\r\n\r\n")
        assert alone.recv(100).startswith(b"HTTP/1.1 200")  # nobody waited: it had its time
        held = [socket.create_connection(("127.0.0.1", node.port), timeout=20) for _ in range(18)]
        try:
            for sock in held:
                sock.sendall(b"GET /livez HTTP/1.1\r\n")
            assert processes.call(f"{node.url}/livez", timeout=20)[0] == 200
            assert held[0].recv(100) == b""
        finally:
            for sock in held:
                sock.close()


def test_probes_answer_by_whatever_name_they_are_asked(toy_mesh: ToyMesh) -> None:
    for url in (toy_mesh.head.url, toy_mesh.nodes[0].url):
        for path in ("/livez", "/readyz"):
            assert processes.call(f"{url}{path}", headers={"Host": "10.1.2.3:9999"})[0] == 200
    assert processes.call(f"{toy_mesh.head.url}/livez", "POST", b"")[0] == 405
    assert processes.call(f"{toy_mesh.head.url}/admin/login/", headers={"Host": "10.1.2.3"})[0] == 400
