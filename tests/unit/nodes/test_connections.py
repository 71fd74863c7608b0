"""Connections to a node: where they go, and how a node that hangs is told from one that works."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from nodes import client, connections
from nodes.client import HttpNodeClient
from nodes.errors import NodeProtocolError, NodeTimeout, NodeUnreachable, OutsideNetworks
from nodes.framing import Payload
from nodes.networks import NodeNetworks
from nodes.wire import StepHeaders
from tests.certificates import Authority

STEP = Payload(torch.zeros(1, 2, 4))
TOKEN = b'{"text": "x", "token_id": 7}'
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(TOKEN), TOKEN)
LOOPBACK = NodeNetworks(["127.0.0.0/8"], plain_http=False)


class SlowNode:
    """Accepts connections. Answers probes while `lives`, steps once `step` is set; keeps what it was asked for."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.tls = tls
        self.server = socket.create_server(("127.0.0.1", 0))
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.server.getsockname()[1]}"
        self.lives = True
        self.step = threading.Event()
        self.answer = ANSWER
        self.probes = 0
        self.probed = threading.Event()
        self.requests: list[bytes] = []

    def run(self) -> None:
        while True:
            try:
                sock, _ = self.server.accept()
            except OSError:
                return
            threading.Thread(target=self.greet, args=(sock,), daemon=True).start()

    def greet(self, sock: socket.socket) -> None:
        self.serve(self.tls.wrap_socket(sock, server_side=True) if self.tls else sock)

    def serve(self, sock: socket.socket) -> None:
        with sock:
            request = sock.recv(65536)
            if request.startswith(b"GET /livez"):
                self.probes += 1
                if self.probes == 2:
                    self.probed.set()
                if self.lives:
                    sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                else:
                    sock.recv(1)  # until whoever asked gives up
                return
            self.requests.append(request)
            self.step.wait(20)
            sock.sendall(self.answer)
            sock.settimeout(20)
            with contextlib.suppress(ConnectionResetError):
                while sock.recv(65536):
                    pass


@contextmanager
def slow_node(tls: ssl.SSLContext | None = None) -> Iterator[SlowNode]:
    node = SlowNode(tls)
    thread = threading.Thread(target=node.run, daemon=True)
    thread.start()
    try:
        yield node
    finally:
        node.step.set()
        node.server.shutdown(socket.SHUT_RDWR)
        node.server.close()
        thread.join()


@pytest.fixture
def node() -> Iterator[SlowNode]:
    with slow_node() as made:
        yield made


def forward(node: SlowNode, *, timeout: float = 20.0, patience: float | None = 0.05, **options: Any) -> Any:
    made = HttpNodeClient(node.url, "the secret", **options)
    try:
        return made.forward(StepHeaders(), STEP, timeout=timeout, patience=patience)
    finally:
        made.close()


def test_d06_a_slow_node_that_lives_is_waited_for(node: SlowNode) -> None:
    threading.Thread(target=lambda: node.probed.wait(20) and node.step.set(), daemon=True).start()
    assert forward(node).token_id == 7
    assert node.probes >= 2, "it was asked again and again"
    assert len(node.requests) == 1, "and the step was sent once"


def test_d06_a_node_that_hangs_is_left_long_before_the_timeout(node: SlowNode) -> None:
    node.lives = False
    with pytest.raises(NodeTimeout, match="hangs"):
        forward(node, connect_timeout=0.2)
    assert node.probes == 1
    assert not node.step.is_set()


def test_d06_a_node_that_lives_and_never_answers_is_left_after_the_timeout(node: SlowNode) -> None:
    with pytest.raises(NodeTimeout, match=r"within 0\.3 s"):
        forward(node, timeout=0.3)


def test_d06_an_answer_that_stops_in_its_middle_is_left(node: SlowNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "PAUSE_SECONDS", 0.2)
    node.step.set()
    node.answer = ANSWER[:-5]
    with pytest.raises(NodeTimeout):
        forward(node)


@pytest.mark.parametrize("tickets", [0, 2])
def test_session_tickets_are_not_taken_for_the_beginning_of_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tickets: int
) -> None:
    """They make a TLS socket readable at once, and what follows then had to come within PAUSE_SECONDS."""
    monkeypatch.setattr(connections, "PAUSE_SECONDS", 0.05)
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.certificate("127.0.0.1"))
    context.num_tickets = tickets
    with slow_node(context) as node:
        threading.Thread(target=lambda: node.probed.wait(20) and node.step.set(), daemon=True).start()
        assert forward(node, patience=0.1, ssl_context=authority.context()).token_id == 7
        assert node.probes >= 2


def test_without_patience_nobody_is_asked(node: SlowNode) -> None:
    with pytest.raises(NodeTimeout):
        forward(node, timeout=0.3, patience=None)
    assert node.probes == 0


def test_a_probe_carries_no_secret(node: SlowNode, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []
    plain = node.serve

    def serve(sock: socket.socket) -> None:
        seen.append(sock.recv(65536, socket.MSG_PEEK))
        plain(sock)

    monkeypatch.setattr(node, "serve", serve)
    with pytest.raises(NodeTimeout):
        forward(node, timeout=0.3)
    probes = [request for request in seen if request.startswith(b"GET /livez")]
    assert probes and not any(b"the secret" in request for request in probes)


def test_a_large_body_arrives_whole(node: SlowNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "PART_BYTES", 16)
    node.step.set()
    made = HttpNodeClient(node.url, "the secret")
    hidden = torch.arange(400, dtype=torch.float32).reshape(1, 100, 4)
    received = bytearray()

    def serve(sock: socket.socket) -> None:
        with sock:
            while len(received) < 1600 or not received.endswith(hidden.numpy().tobytes()):
                received.extend(sock.recv(65536))
            sock.sendall(ANSWER)

    monkeypatch.setattr(node, "serve", serve)
    assert made.forward(StepHeaders(), Payload(hidden), timeout=10).token_id == 7
    made.close()


def test_e08_a_longer_answer_than_the_step_can_have_is_not_read(
    node: SlowNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "ANSWER_SLACK_BYTES", 100)
    node.step.set()
    body = b"x" * 10_000
    node.answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 10000\r\n\r\n" + body
    with pytest.raises(NodeProtocolError, match="more than"):
        forward(node)


def test_e08_an_answer_is_not_unpacked(node: SlowNode) -> None:
    node.step.set()
    node.answer = ANSWER.replace(b"Content-Type", b"Content-Encoding: gzip\r\nContent-Type")
    assert forward(node).token_id == 7


def test_the_secret_goes_to_allowed_networks_only(node: SlowNode) -> None:
    node.step.set()
    assert forward(node, networks=LOOPBACK).token_id == 7
    with pytest.raises(OutsideNetworks):
        forward(node, networks=NodeNetworks(["10.0.0.0/8"], plain_http=True))
    assert len(node.requests) == 1


def test_a_name_that_changed_its_address_takes_the_secret_nowhere(
    node: SlowNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DNS rebinding: what is judged is the address that is connected to, at each connection."""
    port = int(node.url.rpartition(":")[2])
    made = HttpNodeClient(f"http://node.example:{port}", "the secret", networks=LOOPBACK, connect_timeout=0.5)
    node.step.set()
    addresses = ["127.0.0.1"]

    def resolve(host: str, *args: Any, **options: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (addresses[0], port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert made.forward(StepHeaders(), STEP, timeout=5).token_id == 7
    made.close()
    addresses[0] = "169.254.169.254"
    with pytest.raises(NodeUnreachable, match=r"169\.254\.169\.254 is link-local"):
        made.forward(StepHeaders(), STEP, timeout=5)


def test_another_address_of_the_name_is_tried_when_one_refuses(node: SlowNode, monkeypatch: pytest.MonkeyPatch) -> None:
    port = int(node.url.rpartition(":")[2])
    with socket.socket() as unused:
        unused.bind(("127.0.0.2", 0))  # bound and not listening: refuses
        found = [(socket.AF_INET, ("127.0.0.2", unused.getsockname()[1])), (socket.AF_INET, ("127.0.0.1", port))]
        monkeypatch.setattr(NodeNetworks, "addresses", lambda *args, **options: found)
        node.step.set()
        assert forward(node, networks=LOOPBACK).token_id == 7


def test_closing_leaves_the_client_usable(node: SlowNode) -> None:
    node.step.set()
    made = HttpNodeClient(node.url, "the secret")
    for _ in range(2):
        assert made.forward(StepHeaders(), STEP, timeout=5).token_id == 7
        made.close()
    assert len(node.requests) == 2


def test_connections_that_nobody_uses_are_closed_and_the_others_kept(
    node: SlowNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(connections, "monotonic", lambda: now[0])
    node.step.set()
    made = HttpNodeClient(node.url, "the secret")
    made.forward(StepHeaders(), STEP, timeout=5)

    def kept() -> int:
        pool = made._pool.pool
        assert pool is not None
        return sum(conn is not None for conn in pool.queue)

    now[0] += connections.POOL_IDLE_SECONDS - 1
    made.tidy()
    assert kept() == 1
    now[0] += 1
    made.tidy()
    assert kept() == 0
    assert made.forward(StepHeaders(), STEP, timeout=5).token_id == 7
    assert len(node.requests) == 2
    made.close()
