"""A mesh over TLS: the nodes demand certificates of their clients, the head serves HTTPS itself."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from nodes import tls
from nodes.client import HttpNodeClient
from nodes.errors import NodeUnreachable
from nodes.networks import NodeNetworks
from tests import processes
from tests.certificates import Authority
from tests.integration.test_chat import MESSAGES, expected_text, joined
from tests.processes import ROOT, Served, wait_until

LOOPBACK = NodeNetworks(["127.0.0.0/8"], plain_http=False)


@dataclass
class TLSMesh:
    nodes: list[Served]
    head: Served
    client: openai.OpenAI
    api_key: str
    model: Path
    ours: Authority

    def ask_node(self, path: str) -> Any:
        status, _, body = processes.call(
            f"{self.nodes[0].url}{path}", headers=processes.secret_header(), context=self.nodes[0].context
        )
        assert status == 200, body
        return json.loads(body)


@pytest.fixture(scope="module")
def mesh(toy_folder: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TLSMesh]:
    folder, model = tmp_path_factory.mktemp("tls"), toy_folder("llama")
    ours = Authority(folder / "ours")
    nodes = [
        processes.node(folder / layers, model, layers, **ours.serves(), MESHNET_TLS_CLIENT_CA=str(ours.file))
        for layers in ("0:2", "2:4")
    ]
    for node in nodes:
        node.context = ours.context("test.example")
    head = processes.head(
        folder / "head",
        model,
        [node.url for node in nodes],
        **ours.serves(),
        **ours.shows(),
        MESHNET_NODE_CA=str(ours.file),
    )
    head.context = ours.context()
    with ExitStack() as stack:
        stack.enter_context(processes.serving(*nodes))
        key = processes.prepare_head(head)
        stack.enter_context(processes.serving(head))
        http = stack.enter_context(httpx2.Client(verify=head.context))
        client = openai.OpenAI(base_url=f"{head.url}/v1", api_key=key, http_client=http)
        yield TLSMesh(nodes, head, client, key, model, ours)


def test_a_chat_over_nodes_with_tls_is_that_of_the_whole_model(mesh: TLSMesh, toy_reference: Any) -> None:
    stream = mesh.client.chat.completions.create(
        model=mesh.model.name, messages=MESSAGES, max_tokens=30, temperature=0, stream=True
    )
    text = joined(stream)
    assert text == expected_text(mesh, toy_reference("llama"), 30)  # type: ignore[arg-type]
    wait_until(lambda: not mesh.ask_node("/sessions")["sessions"], 5, "a session was left behind")


def test_commands_reach_nodes_that_demand_a_certificate(mesh: TLSMesh) -> None:
    environ = {name: mesh.head.environ[name] for name in mesh.head.environ if name.startswith("MESHNET_NODE")}
    done = subprocess.run(
        [sys.executable, "manage.py", "kv_sessions", "--json"],
        cwd=ROOT,
        env={**environ, "MESHNET_SECRET": processes.SECRET, "MESHNET_VAR_DIR": str(mesh.head.folder / "elsewhere")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [node["error"] for node in json.loads(done.stdout)["nodes"]] == [None, None]


@pytest.mark.parametrize("stranger", [False, True], ids=["without a certificate", "with another authority's"])
def test_a_client_that_the_authority_does_not_know_is_refused(mesh: TLSMesh, tmp_path: Path, stranger: bool) -> None:
    context = ssl.create_default_context(cafile=str(mesh.ours.file))
    if stranger:
        certificate, key = Authority(tmp_path / "theirs").certificate("test.example")
        context.load_cert_chain(certificate, key)
    client = HttpNodeClient(mesh.nodes[0].url, processes.SECRET, ssl_context=context, networks=LOOPBACK)
    with pytest.raises(NodeUnreachable):
        client.status(timeout=10)
    client.close()


def test_plain_http_gets_nothing_from_a_node_with_tls(mesh: TLSMesh) -> None:
    with socket.create_connection(("127.0.0.1", mesh.nodes[0].port), timeout=10) as sock:
        sock.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert not sock.recv(1000).startswith(b"HTTP")


def test_no_session_tickets_come_before_a_slow_answer(mesh: TLSMesh) -> None:
    with raw_connection(mesh) as sock:
        sock.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert sock.recv(1000).startswith(b"HTTP/1.1 200")
        assert sock.version() == "TLSv1.3"
        assert sock.session is None or not sock.session.has_ticket


def test_f08_a_refusal_before_the_body_reaches_a_client_over_tls(mesh: TLSMesh) -> None:
    """The body is larger than what lies in the kernel's buffers: undrained, the client would see a reset."""
    with raw_connection(mesh) as sock:
        body = b"x" * 1_000_000
        sock.sendall(
            b"POST /forward HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer wrong\r\n"
            b"Content-Type: application/octet-stream\r\nContent-Length: 1000000\r\n\r\n" + body
        )
        answer = b""
        while piece := sock.recv(65536):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 401")
    assert b'"unauthorized"' in answer


def test_d01_a_client_that_goes_away_over_tls_ends_its_generation(mesh: TLSMesh) -> None:
    body = json.dumps(
        {"model": mesh.model.name, "messages": MESSAGES, "max_tokens": 440, "temperature": 0, "stream": False}
    ).encode()
    with mesh_socket(mesh.head) as sock:
        sock.sendall(
            (
                f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {mesh.api_key}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            ).encode()
            + body
        )
        wait_until(lambda: mesh.ask_node("/sessions")["sessions"], 10)
    wait_until(lambda: not mesh.ask_node("/sessions")["sessions"], 5, "the client's going was not noticed")
    code = "from generation.models import Generation\nresult = Generation.objects.latest('id').status\n"
    wait_until(lambda: processes.in_django(mesh.head, code) == "cancelled", 10)


def test_a_renewed_certificate_is_served_without_a_restart(mesh: TLSMesh, tmp_path: Path) -> None:
    before, after = Authority(tmp_path / "before"), Authority(tmp_path / "after")
    node = processes.node(tmp_path, mesh.model, "0:1", **before.serves())
    node.context = before.context()
    with processes.serving(node):
        for kept, renewed in zip(before.certificate("127.0.0.1"), after.certificate("127.0.0.1"), strict=True):
            renewed.replace(kept)
        node.context = after.context()
        assert processes.call(f"{node.url}/livez", context=node.context)[0] == 200


def test_half_handshakes_and_silent_clients_do_not_hold_a_node_up(mesh: TLSMesh, tmp_path: Path) -> None:
    """More of them than the node has threads."""
    node = processes.node(tmp_path, mesh.model, "0:1", **mesh.ours.serves(), MESHNET_KV_MAX_SESSIONS="1")
    node.preload = "import meshsite.worker as w; w.HEADER_SECONDS, w.HURRIED_SECONDS = 600.0, 0.5"
    node.context = mesh.ours.context()
    with processes.serving(node):
        held = [socket.create_connection(("127.0.0.1", node.port), timeout=30) for _ in range(36)]
        try:
            for sock in held[:16]:
                sock.sendall(b"\x16\x03\x01\x02\x00\x01\x00")  # the beginning of a client's first message
            for sock in held[16:32]:
                sock.sendall(b"GET / HTTP/1.1\r\n\r\n")  # not TLS at all, and it is not closed either
            assert processes.call(f"{node.url}/livez", timeout=30, context=node.context)[0] == 200
            assert held[0].recv(100) == b""
        finally:
            for sock in held:
                sock.close()


@dataclass
class Listener:
    """Serves TLS with some certificate and keeps what clients then say."""

    certificate: tuple[Path, Path]
    heard: bytes = b""
    handshakes: list[str] = field(default_factory=list)

    @contextmanager
    def listening(self) -> Iterator[int]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.certificate)
        with socket.create_server(("127.0.0.1", 0)) as server:
            thread = threading.Thread(target=self._serve, args=(server, context))
            thread.start()
            yield server.getsockname()[1]
            thread.join(10)

    def _serve(self, server: socket.socket, context: ssl.SSLContext) -> None:
        sock, _ = server.accept()
        with sock:
            sock.settimeout(10)
            try:
                with context.wrap_socket(sock, server_side=True) as secured:
                    self.handshakes.append("done")
                    while piece := secured.recv(65536):
                        self.heard += piece
                        secured.sendall(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            except OSError as error:
                self.handshakes.append(str(error))


@pytest.mark.parametrize(
    ("authority", "name", "is_trusted"),
    [("ours", "127.0.0.1", True), ("theirs", "127.0.0.1", False), ("ours", "other.example", False)],
    ids=["the node itself", "another authority's certificate", "another host's certificate"],
)
def test_the_secret_goes_to_nobody_but_the_node(
    tmp_path: Path, settings: Any, authority: str, name: str, is_trusted: bool
) -> None:
    """The case of a node that is what it says shows that the listener would have heard the secret."""
    authorities = {"ours": Authority(tmp_path / "ours"), "theirs": Authority(tmp_path / "theirs")}
    settings.MESHNET_NODE_CA = str(authorities["ours"].file)
    listener = Listener(authorities[authority].certificate(name))
    with listener.listening() as port:
        client = HttpNodeClient(
            f"https://127.0.0.1:{port}", processes.SECRET, ssl_context=tls.client_context(), networks=LOOPBACK
        )
        with pytest.raises(Exception, match="500" if is_trusted else "certificate"):
            client.status(timeout=10)
        client.close()
    assert (b"Authorization" in listener.heard) is is_trusted
    assert (processes.SECRET.encode() in listener.heard) is is_trusted


@contextmanager
def mesh_socket(served: Served) -> Iterator[ssl.SSLSocket]:
    assert served.context is not None
    with (
        socket.create_connection(("127.0.0.1", served.port), timeout=30) as plain,
        served.context.wrap_socket(plain, server_hostname="127.0.0.1") as sock,
    ):
        yield sock


def raw_connection(mesh: TLSMesh) -> Any:
    return mesh_socket(mesh.nodes[0])
