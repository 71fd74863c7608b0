"""`POST /forward` of a real node process: good steps, and every kind of bad one."""

from __future__ import annotations

import http.client
import json
import pickle
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from safetensors.torch import load, save

from nodes import framing, wire
from nodes.framing import Payload
from nodes.wire import mint_session_id
from tests import processes
from tests.processes import Served
from tests.toy_mesh import ToyMesh

STEP = framing.encode(Payload(torch.zeros(1, 3, 64)))
ONE = framing.encode(Payload(torch.zeros(1, 1, 64)))
TENSOR = {"Content-Type": wire.TENSOR_TYPE}


@pytest.fixture
def node(toy_mesh: ToyMesh) -> Served:
    return toy_mesh.nodes[0]


def forward(node: Served, body: bytes = STEP, **headers: str) -> tuple[int, dict[str, str], bytes]:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return processes.call(f"{node.url}/forward", "POST", body, {**processes.secret_header(), **TENSOR, **names})


def cached(session: str, mode: str, past_len: int | None = None) -> dict[str, str]:
    headers = {wire.SESSION: session, wire.CACHE: mode}
    return headers if past_len is None else {**headers, wire.PAST_LEN: str(past_len)}


def release(node: Served, session: str) -> None:
    processes.call(f"{node.url}/sessions/{session}", "DELETE", headers=processes.secret_header())


def test_a_stateless_step_answers_hidden_states_and_times(node: Served) -> None:
    status, headers, body = forward(node)
    assert (status, headers["Content-Type"]) == (200, wire.TENSOR_TYPE)
    assert load(body)["hidden_states"].shape == (1, 3, 64)
    assert wire.PAST_LEN not in headers
    assert wire.Timings.from_http(headers["Server-Timing"]).compute_ms > 0
    assert int(headers["Content-Length"]) == len(body)


def test_a_session_is_acknowledged_continued_and_released(node: Served) -> None:
    session = mint_session_id()
    assert forward(node, **cached(session, "prefill"))[1][wire.PAST_LEN] == "3"
    assert forward(node, ONE, **cached(session, "decode", 3))[1][wire.PAST_LEN] == "4"
    status, _, body = forward(node, ONE, **cached(session, "decode", 3))
    assert status == 409
    assert json.loads(body) == {
        "error": "cache_miss",
        "detail": json.loads(body)["detail"],
        "reason": "past_len_mismatch",
        "expected": 3,
        "held": 4,
    }
    url = f"{node.url}/sessions/{session}"
    assert json.loads(processes.call(url, "DELETE", headers=processes.secret_header())[2]) == {"released": True}
    assert json.loads(processes.call(url, "DELETE", headers=processes.secret_header())[2]) == {"released": False}
    assert forward(node, ONE, **cached(session, "decode", 4))[0] == 410


def test_the_tail_answers_a_token(toy_mesh: ToyMesh) -> None:
    status, headers, body = forward(toy_mesh.nodes[1])
    assert (status, headers["Content-Type"]) == (200, wire.JSON_TYPE)
    assert set(json.loads(body)) == {"text", "token_id"}
    assert 0 <= json.loads(body)["token_id"] < 320


BAD_BODIES: dict[str, tuple[bytes, int, str]] = {
    "empty": (b"", 400, "safetensors"),
    "garbage": (b"\x93NUMPY" + bytes(100), 400, "safetensors"),
    "json": (b'{"hidden_states": [[1]]}', 400, "safetensors"),
    "e01 pickle": (pickle.dumps({"hidden_states": 1}), 400, "safetensors"),
    "wrong shape": (save({"hidden_states": torch.zeros(3, 64)}), 400, "shape"),
    "batch of two": (save({"hidden_states": torch.zeros(2, 3, 64)}), 400, "shape"),
    "wrong dtype": (save({"hidden_states": torch.zeros(1, 3, 64, dtype=torch.float64)}), 400, "float64"),
    "another dtype": (save({"hidden_states": torch.zeros(1, 3, 64, dtype=torch.bfloat16)}), 400, "bfloat16"),
    "wrong hidden size": (save({"hidden_states": torch.zeros(1, 3, 63)}), 400, "64 values"),
    "nan": (save({"hidden_states": torch.full((1, 3, 64), float("nan"))}), 400, "NaN"),
    "too long": (save({"hidden_states": torch.zeros(1, 513, 64)}), 400, "512"),
    "unknown tensor": (save({"hidden_states": torch.zeros(1, 3, 64), "mask": torch.zeros(1)}), 400, "mask"),
}

BAD_HEADERS: dict[str, tuple[dict[str, str], int, str]] = {
    "cache without session": ({wire.CACHE: "prefill"}, 400, wire.SESSION),
    "decode without length": ({wire.SESSION: "s" * 22, wire.CACHE: "decode"}, 400, wire.PAST_LEN),
    "unknown mode": ({wire.SESSION: "s" * 22, wire.CACHE: "x"}, 400, wire.CACHE),
    "bad session": ({wire.SESSION: "<script>", wire.CACHE: "prefill"}, 400, wire.SESSION),
    "bad length": ({wire.SESSION: "s" * 22, wire.CACHE: "decode", wire.PAST_LEN: "1e3"}, 400, wire.PAST_LEN),
    "another model": ({wire.MODEL: "other@1"}, 421, "serves"),
    "other layers": ({wire.START_LAYER: "2", wire.END_LAYER: "4"}, 421, "0:2"),
    "no layers": ({wire.START_LAYER: "1", wire.END_LAYER: "1"}, 400, "no layer"),
    "e05 underscores": ({"X_Meshnet_Session": "s" * 22, wire.CACHE: "prefill"}, 400, wire.SESSION),
    "wrong type": ({"Content-Type": "application/json"}, 415, wire.TENSOR_TYPE),
}


@pytest.fixture
def undisturbed(toy_mesh: ToyMesh, node: Served) -> Iterator[None]:
    """A session of somebody else, which must be as it was when the test ends, and the only one."""
    session = mint_session_id()
    forward(node, **cached(session, "prefill"))
    yield
    (row,) = toy_mesh.sessions()[0]["sessions"]
    assert (row["id"], row["past_len"]) == (session, 3)
    assert forward(node, ONE, **cached(session, "decode", 3))[0] == 200
    release(node, session)


@pytest.mark.parametrize("name", sorted(BAD_BODIES))
@pytest.mark.usefixtures("undisturbed")
def test_a_bad_body_is_refused_in_json(node: Served, name: str) -> None:
    body, status, named = BAD_BODIES[name]
    check_refusal(forward(node, body, **cached(mint_session_id(), "prefill")), status, named)


@pytest.mark.parametrize("name", sorted(BAD_HEADERS))
@pytest.mark.usefixtures("undisturbed")
def test_bad_headers_are_refused_in_json(node: Served, name: str) -> None:
    headers, status, named = BAD_HEADERS[name]
    sent = {**processes.secret_header(), **TENSOR, **headers}
    check_refusal(processes.call(f"{node.url}/forward", "POST", STEP, sent), status, named)


def check_refusal(answer: tuple[int, dict[str, str], bytes], status: int, named: str) -> None:
    assert answer[0] == status, answer
    assert answer[1]["Content-Type"] == wire.JSON_TYPE
    body = json.loads(answer[2])
    assert named in body["detail"], body
    assert "Traceback" not in body["detail"]


def raw(node: Served, request: bytes, then: Callable[[socket.socket], Any] = lambda _: None) -> bytes:
    """What a node answers to bytes on a bare socket, until it closes."""
    with socket.create_connection(("127.0.0.1", node.port), timeout=10) as sock:
        sock.sendall(request)
        then(sock)
        pieces = []
        while piece := sock.recv(65536):
            pieces.append(piece)
        return b"".join(pieces)


def head_of(*lines: str, secret: bool = True) -> bytes:
    authorization = [f"Authorization: Bearer {processes.SECRET}"] if secret else []
    return "\r\n".join(["POST /forward HTTP/1.1", "Host: node", *authorization, *lines, "", ""]).encode()


@pytest.mark.parametrize("name", [wire.SESSION, wire.PAST_LEN, wire.CACHE])
@pytest.mark.usefixtures("undisturbed")
def test_e05_doubled_headers_are_refused_by_name(node: Served, name: str) -> None:
    values = {wire.SESSION: "s" * 22, wire.CACHE: "decode", wire.PAST_LEN: "12"}
    lines = [f"{key}: {value}" for key, value in values.items()] + [f"{name}: {values[name]}"]
    request = head_of(*lines, f"Content-Type: {wire.TENSOR_TYPE}", f"Content-Length: {len(ONE)}", "Connection: close")
    answer = raw(node, request + ONE)
    assert answer.startswith(b"HTTP/1.1 400")
    assert name.encode() in answer


@pytest.mark.usefixtures("undisturbed")
def test_e02_a_wrong_secret_is_refused_before_the_body_is_read(node: Served) -> None:
    """The request's body is never sent; an answer can only come from a node that does not wait for it."""
    for secret in ("", "Authorization: Bearer wrong", f"Authorization: Basic {processes.SECRET}"):
        lines = [line for line in (secret, f"Content-Type: {wire.TENSOR_TYPE}", "Content-Length: 1000") if line]
        answer = raw(node, head_of(*lines, secret=False))
        assert answer.startswith(b"HTTP/1.1 401"), answer
        assert b"\r\nConnection: close\r\n" in answer
        assert b'"unauthorized"' in answer


@pytest.mark.usefixtures("undisturbed")
def test_e08_a_body_over_the_limit_is_refused_at_once(node: Served) -> None:
    for length in (10_000_000, 10 * 1024**3):
        answer = raw(node, head_of(f"Content-Type: {wire.TENSOR_TYPE}", f"Content-Length: {length}"))
        assert answer.startswith(b"HTTP/1.1 413"), answer
        assert b"\r\nConnection: close\r\n" in answer
        assert str(length).encode() in answer


@pytest.mark.usefixtures("undisturbed")
def test_e08_the_longest_legal_body_passes_and_one_byte_over_the_limit_does_not(node: Served) -> None:
    status, _, _ = forward(node, framing.encode(Payload(torch.zeros(1, 512, 64))))
    assert status == 200
    limit = 512 * (64 * 4 + 8) + 1024 * 1024
    assert forward(node, bytes(limit))[0] == 400
    assert forward(node, bytes(limit + 1))[0] == 413


@pytest.mark.usefixtures("undisturbed")
def test_a_body_without_a_length_is_refused(node: Served) -> None:
    answer = raw(
        node, head_of(f"Content-Type: {wire.TENSOR_TYPE}", "Transfer-Encoding: chunked") + b"3\r\nabc\r\n0\r\n\r\n"
    )
    assert answer.startswith(b"HTTP/1.1 411"), answer


@pytest.mark.usefixtures("undisturbed")
def test_a_body_that_breaks_off_leaves_nothing(node: Served) -> None:
    lines = [f"{key}: {value}" for key, value in cached(mint_session_id(), "prefill").items()]
    request = head_of(*lines, f"Content-Type: {wire.TENSOR_TYPE}", f"Content-Length: {len(STEP)}")
    answer = raw(node, request + STEP[:-10], lambda sock: sock.shutdown(socket.SHUT_WR))
    assert b" 200 " not in answer.partition(b"\r\n")[0]


def test_a_refused_request_does_not_break_the_next_on_the_same_connection(node: Served) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", node.port, timeout=10)
    good = {**processes.secret_header(), **TENSOR}
    for body, headers, expected in (
        (STEP, good, 200),
        (b"garbage", good, 400),
        (STEP, {**good, wire.CACHE: "x"}, 400),
        (STEP, {**TENSOR, "Authorization": "Bearer wrong"}, 401),
        (bytes(3_000_000), good, 413),
        (bytes(900_000), {**good, wire.CACHE: "x"}, 400),
        (STEP, good, 200),
    ):
        connection.request("POST", "/forward", body, headers)
        with connection.getresponse() as answer:
            answer.read()
            assert answer.status == expected
    connection.close()
    assert "Traceback" not in node.log.read_text()


def test_other_methods_and_paths_are_json_errors(node: Served) -> None:
    for method, path, status in (
        ("GET", "/forward", 405),
        ("PUT", "/sessions", 405),
        ("GET", "/nowhere", 404),
        ("GET", "/v1/models", 404),
        ("DELETE", "/sessions/..%2F..%2Fx", 404),
        ("DELETE", "/sessions/short", 404),
        ("GET", "/sessions/evict", 405),
    ):
        code, headers, body = processes.call(f"{node.url}{path}", method, headers=processes.secret_header())
        assert (code, headers["Content-Type"]) == (status, wire.JSON_TYPE), (path, body)
        assert json.loads(body)["detail"]


def test_e02_every_endpoint_but_the_probes_needs_the_secret_and_not_the_api_key(
    toy_mesh: ToyMesh, node: Served
) -> None:
    paths = [("POST", "/forward"), ("GET", "/sessions"), ("DELETE", "/sessions/" + "s" * 22), ("GET", "/status")]
    for method, path in [*paths, ("POST", "/sessions/evict")]:
        for headers in ({}, {"Authorization": f"Bearer {toy_mesh.api_key}"}):
            assert processes.call(f"{node.url}{path}", method, headers=headers)[0] == 401, path
    for path in ("/livez", "/readyz"):
        assert processes.call(f"{node.url}{path}")[0] == 200
    status, _, _ = processes.call(f"{toy_mesh.head.url}/v1/models", headers=processes.secret_header())
    assert status == 401, "the mesh secret does not open the API"


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"", "JSON"),
        (b"[]", "object"),
        (b"{", "JSON"),
        (b"[" * 10_000, "JSON"),
        (b"{}", "exactly one"),
        (b'{"ids": "all"}', "ids"),
        (b'{"ids": [1]}', "ids"),
        (b'{"idle_longer_than": "1h"}', "idle_longer_than"),
        (b'{"idle_longer_than": NaN}', "idle_longer_than"),
        (b'{"idle_longer_than": true}', "idle_longer_than"),
        (b'{"idle_longer_than": 1' + b"0" * 400 + b"}", "idle_longer_than"),
        (b'{"all": 1}', "all"),
        (b'{"all": true, "ids": []}', "exactly one"),
        (b'{"everything": true}', "everything"),
        (b'{"all": true, "by": "head"}', "ids only"),
        (b'{"ids": [], "by": "me"}', "by"),
    ],
)
@pytest.mark.usefixtures("undisturbed")
def test_a_bad_eviction_is_refused_by_name(node: Served, body: bytes, named: str) -> None:
    answer = processes.call(f"{node.url}/sessions/evict", "POST", body, processes.secret_header())
    check_refusal(answer, 400, named)


def test_limits_change_on_a_running_node_and_are_refused_by_name(toy_mesh: ToyMesh, node: Served) -> None:
    before = toy_mesh.sessions()[0]["limits"]
    url = f"{node.url}/limits"
    status, _, body = processes.call(url, "PATCH", {"ttl_seconds": 5, "max_sessions": 3}, processes.secret_header())
    assert (status, json.loads(body)) == (200, {**before, "ttl_seconds": 5.0, "max_sessions": 3})
    assert toy_mesh.sessions()[0]["limits"] == json.loads(body)
    check_refusal(processes.call(url, "PATCH", {"max_sessions": 999}, processes.secret_header()), 400, "max_sessions")
    check_refusal(processes.call(url, "PATCH", b"[]", processes.secret_header()), 400, "object")
    assert processes.call(url, "PATCH", {"ttl_seconds": 5})[0] == 401
    restored = {name: before[name] for name in ("ttl_seconds", "max_sessions", "max_bytes")}
    assert processes.call(url, "PATCH", restored, processes.secret_header())[0] == 200


def test_a_node_drains_and_comes_back(node: Served) -> None:
    session = mint_session_id()
    assert forward(node, **cached(session, "prefill"))[0] == 200
    url = f"{node.url}/drain"
    assert json.loads(processes.call(url, "POST", headers=processes.secret_header())[2]) == {"state": "draining"}
    assert processes.call(f"{node.url}/readyz")[0] == 503
    status, headers, body = forward(node, **cached(mint_session_id(), "prefill"))
    assert (status, json.loads(body)["error"], headers["Retry-After"]) == (503, "draining", "5")
    assert forward(node, ONE, **cached(session, "decode", 3))[0] == 200, "running sessions go on"
    assert json.loads(processes.call(url, "DELETE", headers=processes.secret_header())[2]) == {"state": "ready"}
    assert forward(node)[0] == 200
    release(node, session)


def test_status_says_what_the_node_has_done(node: Served) -> None:
    before = json.loads(processes.call(f"{node.url}/status", headers=processes.secret_header())[2])["work"]
    forward(node)
    forward(node, **{wire.MODEL: "other"})
    after = json.loads(processes.call(f"{node.url}/status", headers=processes.secret_header())[2])["work"]
    assert after["steps"]["stateless"] == before["steps"]["stateless"] + 1
    assert after["tokens"] == before["tokens"] + 3
    assert after["refusals"]["wrong_model"] == before["refusals"].get("wrong_model", 0) + 1
    assert after["compute_ms"] > before["compute_ms"]
