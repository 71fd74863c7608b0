"""Two heads behind nginx, configured as deploy/nginx/meshnet.conf has it: nothing held up, nothing twice."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import resource
import socket
import threading
import time
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests import processes
from tests.heads.two_heads import LONG, TwoHeads
from tests.nginx import running_nginx
from tests.processes import call, free_port, wait_until

TOKENS = 10
#: Tokens of the toy model are bytes: only a to z, so that each is a piece of text.
LETTERS = {str(token): 100 for token in range(ord("a") - ord("!"), ord("z") - ord("!") + 1)}


def error_of(answer: tuple[int, dict[str, str], bytes]) -> dict[str, Any]:
    _, headers, body = answer
    assert {name.lower(): value for name, value in headers.items()}["content-type"] == "application/json", body
    found: dict[str, Any] = json.loads(body)["error"]
    assert set(found) == {"message", "type", "param", "code"}
    return found


def sent(url: str, request: str) -> tuple[int, dict[str, str], bytes]:
    """The answer to something that no client would send."""
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(request.encode())
        with http.client.HTTPResponse(connection) as response:
            response.begin()
            return response.status, dict(response.getheaders()), response.read()


def children(parent: int, name: str) -> list[int]:
    """Ids of a process's children of that name."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            before, _, after = stat.read_text().rpartition(")")
            if before.endswith(f"({name}") and int(after.split()[1]) == parent:
                found.append(int(stat.parent.name))
    return found


def test_each_piece_of_a_stream_arrives_before_the_next_token_is_made(two_heads: TwoHeads, proxy: str) -> None:
    """Each step's answer is held at the first node until the client has read all that came before it."""
    turn, node, held = threading.Semaphore(0), two_heads.mesh.proxy, threading.Semaphore(0)

    def wait_for_turn() -> None:
        held.release()
        assert turn.acquire(timeout=20)

    before, node.delay = node.delay, wait_for_turn
    got: list[str] = []

    def read() -> None:
        with two_heads.stream(proxy, tokens=TOKENS, logit_bias=LETTERS) as stream:
            while piece := stream.text_event():
                got.append(piece)

    client = threading.Thread(target=read)
    try:
        client.start()
        assert held.acquire(timeout=20)
        for made in range(TOKENS):
            # `made` tokens are made, and the step for the next one is held.
            wait_until(lambda made=made: len(got) == made, 10)  # type: ignore[misc]
            turn.release()
            assert made == TOKENS - 1 or held.acquire(timeout=20)
    finally:
        node.delay = before
        for _ in range(TOKENS):
            turn.release()
        client.join(20)
    assert [len(piece) for piece in got] == [1] * TOKENS


@LONG
def test_a_stream_outlives_a_silence_that_is_longer_than_the_proxys_patience(two_heads: TwoHeads) -> None:
    heads = [head.port for head in two_heads.heads]
    with (
        running_nginx(heads, proxy_read_timeout="2s") as url,
        two_heads.mesh.proxy.slowed(0.02),
        two_heads.stream(url) as stream,
    ):
        assert stream.text_event()
        with two_heads.mesh.proxy.holding():
            since, comments = time.monotonic(), 0
            while time.monotonic() - since < 3:
                comments += stream.event().startswith(": keep-alive")
        assert comments > 1
        assert stream.rest()[-1] == "data: [DONE]"


def test_a_body_of_20_mb_is_refused_in_the_heads_own_words(two_heads: TwoHeads, proxy: str) -> None:
    body, headers = b"x" * 20_000_000, {"Authorization": f"Bearer {two_heads.key}", "X-Request-Id": "mine-1"}
    connection = http.client.HTTPConnection(proxy.removeprefix("http://"), timeout=30)
    connection.putrequest("POST", "/v1/chat/completions")
    for name, value in {**headers, "Content-Type": "application/json", "Content-Length": str(len(body))}.items():
        connection.putheader(name, value)
    connection.endheaders(body[:65536])
    response = connection.getresponse()
    theirs = response.status, dict(response.getheaders()), response.read()
    ours = call(
        f"{two_heads.heads[0].url}/v1/chat/completions", "POST", body[: 4 * 1024 * 1024 + 1], headers, timeout=30
    )
    assert theirs[0] == ours[0] == 413
    assert error_of(theirs) == error_of(ours)
    assert theirs[1]["x-request-id"] == "mine-1"


def test_request_ids_of_clients_and_of_the_proxy_are_the_heads_too(two_heads: TwoHeads, proxy: str) -> None:
    def id_of(**headers: str) -> str:
        _, found, _ = call(f"{proxy}/v1/models", headers={"Authorization": f"Bearer {two_heads.key}", **headers})
        return {name.lower(): value for name, value in found.items()}["x-request-id"]

    assert id_of(**{"X-Request-Id": "my-own.id_7"}) == "my-own.id_7"
    made = id_of(), id_of(**{"X-Request-Id": "not an id"})
    assert made[0] != made[1]
    assert all(one.startswith("req_") and len(one) == 36 for one in made)


def test_a_client_that_goes_away_ends_its_answer(two_heads: TwoHeads, proxy: str) -> None:
    with two_heads.mesh.proxy.slowed(0.05), two_heads.stream(proxy, tokens=400) as stream:
        assert stream.text_event()
        ((session, _),) = two_heads.running()
        stream.close()
        wait_until(lambda: two_heads.status(session) == "cancelled", 10)
    wait_until(two_heads.mesh.is_idle, 10)


def test_either_head_knows_the_login_and_the_records_of_the_other(two_heads: TwoHeads, proxy: str) -> None:
    assert two_heads.ask(proxy)[0] == 200
    login = call(f"{proxy}/admin/login/")
    (token,) = [part.partition(b'"')[0] for part in login[2].split(b'name="csrfmiddlewaretoken" value="')[1:2]]
    cookie = login[1]["Set-Cookie"].partition(";")[0]
    connection = http.client.HTTPConnection(proxy.removeprefix("http://"), timeout=30)
    connection.request(
        "POST",
        "/admin/login/",
        f"username=operator&password=opens-it&next=/admin/&csrfmiddlewaretoken={token.decode()}",
        {"Cookie": cookie, "Origin": proxy, "Content-Type": "application/x-www-form-urlencoded"},
    )
    response = connection.getresponse()
    assert (response.status, response.getheader("Location")) == (302, "/admin/"), response.read()
    session = "; ".join(
        value.partition(";")[0] for name, value in response.getheaders() if name.lower() == "set-cookie"
    )
    response.read()
    ((newest,),) = two_heads.query("SELECT max(id) FROM generation_generation")
    for one in two_heads.heads:
        page = call(f"{one.url}/admin/generation/generation/{newest}/change/", headers={"Cookie": session})
        assert (page[0], two_heads.mesh.model.name in page[2].decode()) == (200, True)
    connection.close()


def test_what_is_not_for_clients_does_not_come_through(two_heads: TwoHeads, proxy: str) -> None:
    secret = processes.secret_header()
    for path in ("/mesh/announce", "//mesh/announce", "/v1/../mesh/join", "/%6desh/announce"):
        assert call(f"{proxy}{path}", "POST", {"url": "http://127.0.0.1:9"}, secret)[0] == 404
    assert call(f"{proxy}/metrics")[0] == 404
    assert call(f"{proxy}/readyz")[0] == 200


def test_connections_to_heads_are_kept_and_what_clients_say_of_proxies_is_replaced() -> None:
    seen: list[tuple[int, Message]] = []

    class Head(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            seen.append((self.client_address[1], self.headers))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Head) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with running_nginx([server.server_address[1]] * 2) as url:
            connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
            lies = {"X-Forwarded-For": "10.9.9.9", "X-Forwarded-Proto": "https", "Forwarded": "for=10.9.9.9"}
            for _ in range(3):
                connection.request("GET", "/v1/models", headers={**lies, "X-Real-IP": "10.9.9.9"})
                connection.getresponse().read()
            connection.close()
        server.shutdown()
        thread.join()
    assert len({port for port, _ in seen}) < len(seen) == 3
    for _, headers in seen:
        assert headers["Host"] == url.removeprefix("http://")
        assert (headers.get_all("X-Forwarded-For"), headers["X-Forwarded-Proto"]) == (["127.0.0.1"], "http")
        assert not {"Forwarded", "X-Real-IP", "X-Forwarded-Host", "Connection"} & set(headers)


def test_without_any_head_clients_are_told_so_in_json() -> None:
    with running_nginx([free_port(), free_port()]) as url:
        answer = call(f"{url}/v1/chat/completions", "POST", {"model": "m"})
        assert answer[0] == 502
        assert error_of(answer)["code"] == "bad_gateway"
        assert answer[1]["Retry-After"] == "1"


def test_what_the_proxy_cannot_read_is_refused_in_json() -> None:
    with running_nginx([free_port(), free_port()]) as url:
        answer = call(f"{url}/v1/models", headers={"X-Long": "x" * 40_000})
        assert answer[0] == 400
        assert error_of(answer)["code"] == "bad_request"
        for status, line in (
            (414, f"GET /{'a' * 40_000} HTTP/1.1"),
            (400, "no request at all"),
            (400, "GET /v1/../../.. HTTP/1.1"),
            (400, "GET /a%00 HTTP/1.1"),
            (400, "GET /_malformed HTTP/1.1"),
        ):
            answer = sent(url, f"{line}\r\nHost: mesh\r\nConnection: close\r\n\r\n")
            assert (answer[0], error_of(answer)["code"]) == (status, "bad_request"), line[:40]
            assert answer[1]["x-request-id"].startswith("req_")


def test_as_many_connections_as_the_example_names_may_be_open_under_the_usual_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1024), hard))
    try:
        with running_nginx([free_port(), free_port()]):
            workers = [worker for master in children(os.getpid(), "nginx") for worker in children(master, "nginx")]
            limits = [Path(f"/proc/{worker}/limits").read_text() for worker in workers]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    found = [int(text.partition("Max open files")[2].split()[0]) for text in limits]
    assert found and min(found) >= min(hard, 8192)


def test_a_head_that_answers_too_late_is_a_504_in_json(two_heads: TwoHeads) -> None:
    heads = [head.port for head in two_heads.heads]
    with running_nginx(heads, proxy_read_timeout="200ms") as url, two_heads.mesh.proxy.holding():
        answer = two_heads.ask(url)
        assert answer[0] == 504
        assert error_of(answer)["code"] == "gateway_timeout"
        assert answer[1]["x-should-retry"] == "false"
