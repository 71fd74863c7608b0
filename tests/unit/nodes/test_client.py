"""The HTTP client against a server that answers by script."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import torch

from nodes import connections, framing, wire
from nodes.client import HttpNodeClient
from nodes.errors import (
    BadRequest,
    Busy,
    KVCacheMiss,
    NodeProtocolError,
    NodeTimeout,
    NodeUnreachable,
    Unauthorized,
    WrongModel,
)
from nodes.framing import Payload
from nodes.wire import StepHeaders, Timings

STEP = Payload(torch.zeros(1, 2, 4))
SESSION = "s" * 22


class Script(ThreadingHTTPServer):
    """Answers every request with `reply`: status, headers, body. Keeps what it was sent."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.reply: tuple[int, dict[str, str], bytes] = (200, {"Content-Type": wire.JSON_TYPE}, b"{}")
        self.seen: list[tuple[str, str, dict[str, str], bytes]] = []
        self.connections = 0
        self.breaks = 0
        self.hold = threading.Event()
        self.hold.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Script

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.seen.append((self.command, self.path, dict(self.headers), body))
        assert self.server.hold.wait(10)
        status, headers, data = self.server.reply
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_DELETE = answer  # noqa: N815  # http.server's own names

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Script]:
    made = Script()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.hold.set()
    made.shutdown()
    thread.join()
    made.server_close()


@pytest.fixture
def node(server: Script) -> Iterator[HttpNodeClient]:
    made = HttpNodeClient(server.url + "/", "the secret", connect_timeout=1.0)
    yield made
    made.close()


def forward(node: HttpNodeClient, headers: StepHeaders | None = None, timeout: float = 5.0) -> Any:
    return node.forward(headers or StepHeaders(), STEP, timeout=timeout)


def reply_json(server: Script, value: Any, status: int = 200, **headers: str) -> None:
    named = {name.replace("_", "-"): content for name, content in headers.items()}
    server.reply = (status, {"Content-Type": wire.JSON_TYPE, **named}, json.dumps(value).encode())


def test_a_step_carries_secret_headers_and_tensors(server: Script, node: HttpNodeClient) -> None:
    reply_json(
        server, {"text": "a", "token_id": 7}, X_Meshnet_Past_Len="14", Server_Timing="queue;dur=1, compute;dur=2.5"
    )
    answer = forward(node, StepHeaders(SESSION, "decode", 12, 0, 2, "toy@1"))
    assert (answer.token_id, answer.has_token_id, answer.text, answer.past_len) == (7, True, "a", 14)
    assert answer.timings == Timings(1, 2.5)
    ((method, path, headers, body),) = server.seen
    assert (method, path) == ("POST", "/forward")
    assert headers["Authorization"] == "Bearer the secret"
    assert headers["Content-Type"] == wire.TENSOR_TYPE
    assert StepHeaders.from_http(headers) == StepHeaders(SESSION, "decode", 12, 0, 2, "toy@1")
    assert framing.decode(body).hidden.shape == (1, 2, 4)


def test_hidden_states_come_back_and_a_missing_acknowledgement_is_none(server: Script, node: HttpNodeClient) -> None:
    server.reply = (200, {"Content-Type": wire.TENSOR_TYPE}, framing.encode(Payload(torch.ones(1, 2, 4))))
    answer = forward(node)
    assert answer.hidden.equal(torch.ones(1, 2, 4))
    assert (answer.past_len, answer.has_token_id) == (None, False)


def test_an_old_tails_text_is_told_from_a_new_tails_null(server: Script, node: HttpNodeClient) -> None:
    reply_json(server, {"text": "hello"})
    assert (forward(node).has_token_id, forward(node).text) == (False, "hello")
    reply_json(server, {"text": "", "token_id": None})
    assert (forward(node).has_token_id, forward(node).token_id) == (True, None)


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (
            409,
            {"error": "cache_miss", "detail": "gone", "reason": "unknown_session", "expected": 3, "held": 0},
            KVCacheMiss,
        ),
        (421, {"error": "wrong_model", "detail": "another"}, WrongModel),
        (400, {"error": "bad_request", "detail": "no"}, BadRequest),
        (401, {"error": "unauthorized", "detail": "no"}, Unauthorized),
        (503, {"error": "busy", "detail": "full"}, Busy),
        (500, {"error": "something new", "detail": "x"}, NodeProtocolError),
        (302, {}, NodeProtocolError),
        (404, [], NodeProtocolError),
        (500, "text", NodeProtocolError),
    ],
)
def test_a_nodes_error_becomes_the_class_that_made_it(
    server: Script, node: HttpNodeClient, status: int, body: Any, error: type[Exception]
) -> None:
    reply_json(server, body, status, Retry_After="7")
    with pytest.raises(error) as raised:
        forward(node)
    if error is KVCacheMiss:
        assert raised.value.extra == {"reason": "unknown_session", "expected": 3, "held": 0}  # type: ignore[attr-defined]
    if error is Busy:
        assert raised.value.retry_after == 7  # type: ignore[attr-defined]


def test_a_redirect_is_not_followed_with_the_secret(server: Script, node: HttpNodeClient) -> None:
    server.reply = (307, {"Location": f"{server.url}/elsewhere"}, b"")
    with pytest.raises(NodeProtocolError, match="307"):
        node.status(timeout=5)
    assert [path for _, path, _, _ in server.seen] == ["/status"]


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"token_id": "7"}', b'{"token_id": true}', b'{"token_id": 1.5}'])
def test_an_answer_that_is_no_answer_is_a_protocol_error(server: Script, node: HttpNodeClient, body: bytes) -> None:
    server.reply = (200, {"Content-Type": wire.JSON_TYPE}, body)
    with pytest.raises(NodeProtocolError):
        forward(node)


def test_garbage_instead_of_tensors_is_a_protocol_error(server: Script, node: HttpNodeClient) -> None:
    server.reply = (200, {"Content-Type": wire.TENSOR_TYPE}, b"garbage")
    with pytest.raises(NodeProtocolError):
        forward(node)


def test_a_connection_is_kept_and_reused(server: Script, node: HttpNodeClient) -> None:
    for _ in range(5):
        node.status(timeout=5)
    assert server.connections == 1


def test_d05_a_connection_that_was_idle_for_too_long_is_not_reused(
    server: Script, node: HttpNodeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(connections, "monotonic", lambda: now[0])
    node.status(timeout=5)
    now[0] += connections.POOL_IDLE_SECONDS - 1
    node.status(timeout=5)
    assert server.connections == 1
    now[0] += connections.POOL_IDLE_SECONDS + 1
    node.status(timeout=5)
    assert server.connections == 2


def test_d06_a_node_that_does_not_answer_is_a_timeout_and_is_asked_once(server: Script, node: HttpNodeClient) -> None:
    server.hold.clear()
    with pytest.raises(NodeTimeout, match=r"0\.2 s"):
        forward(node, timeout=0.2)
    server.hold.set()
    assert len(server.seen) == 1


def test_d06_a_closed_port_is_unreachable() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        node = HttpNodeClient(f"http://127.0.0.1:{unused.getsockname()[1]}", "the secret")
        with pytest.raises(NodeUnreachable, match="Connection refused"):
            node.status(timeout=1)
        node.close()


def test_half_an_answer_is_unreachable_and_not_taken_for_one(server: Script, node: HttpNodeClient) -> None:
    server.reply = (200, {"Content-Type": wire.JSON_TYPE, "Content-Length": "50"}, b'{"token_id": 7}')
    server.hold.set()
    with pytest.raises(NodeUnreachable):
        node.forward(StepHeaders(), STEP, timeout=0.5)


class BreaksOff(Handler):
    """Ends the connection of a request instead of answering it, so many times."""

    def answer(self) -> None:
        if self.server.breaks:
            self.server.breaks -= 1
            self.server.seen.append((self.command, self.path, {}, b""))
            self.close_connection = True
            return
        super().answer()

    do_GET = do_POST = do_DELETE = answer  # noqa: N815  # http.server's own names


@pytest.mark.parametrize(("breaks", "asked"), [(1, 2), (2, 2)])
def test_a_release_that_is_broken_off_is_told_once_more(
    server: Script, node: HttpNodeClient, breaks: int, asked: int
) -> None:
    server.RequestHandlerClass = BreaksOff
    server.breaks = breaks
    with contextlib.nullcontext() if breaks == 1 else pytest.raises(NodeUnreachable):
        node.release(SESSION, timeout=5)
    assert [(method, path) for method, path, *_ in server.seen] == [("DELETE", f"/sessions/{SESSION}")] * asked


def test_a_release_that_is_not_answered_is_told_once(server: Script, node: HttpNodeClient) -> None:
    server.hold.clear()
    with pytest.raises(NodeTimeout):
        node.release(SESSION, timeout=0.2)
    server.hold.set()
    assert len(server.seen) == 1


def test_the_secret_is_in_no_error_message(server: Script, node: HttpNodeClient) -> None:
    server.reply = (500, {}, b"boom")
    with pytest.raises(NodeProtocolError) as raised:
        forward(node)
    assert "the secret" not in str(raised.value)


def test_evictions_say_what_is_meant(server: Script, node: HttpNodeClient) -> None:
    node.evict(ids=[SESSION], timeout=5)
    node.evict(idle_longer_than=3.5, timeout=5)
    node.evict(everything=True, timeout=5)
    node.give_back(SESSION, timeout=5)
    node.release(SESSION, timeout=5)
    assert [json.loads(body) for _, path, _, body in server.seen if path == "/sessions/evict"] == [
        {"ids": [SESSION]},
        {"idle_longer_than": 3.5},
        {"all": True},
        {"ids": [SESSION], "by": "head"},
    ]
    assert server.seen[-1][:2] == ("DELETE", f"/sessions/{SESSION}")


def test_the_result_of_a_step_is_asked_for_by_session_and_nonce(server: Script, node: HttpNodeClient) -> None:
    hop = {"held": 13, "queue_ms": 0.5, "compute_ms": 7.0}
    reply_json(server, {"text": "a", "token_id": 7, "hops": [hop]})
    letter = node.result(SESSION, "n" * 16, wait=10.0, timeout=5.0)
    assert letter is not None
    assert (letter.token_id, letter.text, letter.logprobs) == (7, "a", None)
    assert [(one.held, one.timings) for one in letter.hops] == [(13, Timings(0.5, 7.0))]
    assert server.seen[0][:2] == ("GET", f"/sessions/{SESSION}/steps/{'n' * 16}?wait=10")
    reply_json(server, {})
    assert node.result(SESSION, "n" * 16, wait=10.0, timeout=5.0) is None
    reply_json(server, {"token_id": 7})
    with pytest.raises(NodeProtocolError, match="hops"):
        node.result(SESSION, "n" * 16, wait=10.0, timeout=5.0)


def test_who_hands_over_is_told_when_the_step_has_gone_out_and_once_only(server: Script, node: HttpNodeClient) -> None:
    """Before the answer: the result is asked for meanwhile."""
    told: list[int] = []
    gone = threading.Event()

    def sent() -> None:
        told.append(1)
        gone.set()

    reply_json(server, {"handed_over": True}, X_Meshnet_Past_Len="13")
    server.hold.clear()
    answers: list[Any] = []
    waiting = threading.Thread(
        target=lambda: answers.append(node.hand_over(StepHeaders(), STEP, timeout=5.0, patience=5.0, sent=sent))
    )
    waiting.start()
    assert gone.wait(5)
    assert not answers
    server.hold.set()
    waiting.join(5)
    assert (answers[0].past_len, answers[0].token_id, told) == (13, None, [1])
    node.status(timeout=5.0)
    assert told == [1]


def test_a_step_that_cannot_go_out_is_not_said_to_have_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    node = HttpNodeClient(url, "the secret", connect_timeout=1.0)
    told: list[int] = []
    with pytest.raises(NodeUnreachable):
        node.hand_over(StepHeaders(), STEP, timeout=5.0, sent=lambda: told.append(1))
    assert not told
