"""A head that is reached over HTTPS only (MESHNET_HTTPS), and what clients can make it believe."""

from __future__ import annotations

import http.client
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

import pytest

from tests import processes
from tests.processes import Served, wait_until

USER, PASSWORD = "watcher", "a-password-for-tests"
FROM_PROXY = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "198.51.100.7"}


@contextmanager
def head_with(model: Any, folder: Any, **environ: str) -> Iterator[tuple[Served, str]]:
    """A head without nodes, which is not ready, and an API key."""
    head = processes.head(folder, model, [], MESHNET_HTTPS="on", **environ)
    key = processes.prepare_head(head)
    try:
        head.start()
        wait_until(lambda: _lives(head), 60)
        yield head, key
    finally:
        head.stop()


def _lives(head: Served) -> bool:
    try:
        return ask(head, "/livez")[0] == 200
    except OSError:
        return False


@pytest.fixture(scope="module")
def served(toy_folder: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, str]]:
    with head_with(toy_folder("llama"), tmp_path_factory.mktemp("https")) as made:
        yield made


@pytest.fixture(scope="module")
def head(served: tuple[Served, str]) -> Served:
    return served[0]


def ask(
    head: Served, path: str, method: str = "GET", body: str | None = None, **headers: str
) -> tuple[int, dict[str, str], str]:
    """One request; redirects are not followed."""
    connection = http.client.HTTPConnection("127.0.0.1", head.port, timeout=30)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read().decode()
    finally:
        connection.close()


def raw(head: Served, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", head.port), timeout=30) as sock:
        sock.sendall(request)
        return sock.recv(4096)


@pytest.mark.parametrize("path", ["/admin/login/", "/v1/docs/", "/v1/docs"])
def test_browsers_are_sent_to_https(head: Served, path: str) -> None:
    status, headers, _ = ask(head, path)
    assert (status, headers["location"]) == (301, f"https://127.0.0.1:{head.port}{path}")
    assert "set-cookie" not in headers


def test_programs_on_the_machine_are_not(served: tuple[Served, str]) -> None:
    head, key = served
    assert ask(head, "/livez")[0] == 200
    assert ask(head, "/readyz")[0] == 503
    assert ask(head, "/metrics")[0] == 200
    assert ask(head, "/v1/models", Authorization=f"Bearer {key}")[0] == 200
    assert ask(head, "/v1/models")[0] == 401
    assert ask(head, "/v1/openapi.json")[0] == 200
    assert ask(head, "/mesh/announce", "POST", "{}", Authorization="Bearer wrong")[0] == 401


def test_an_operator_logs_in_through_a_proxy_and_gets_cookies_for_https_alone(head: Served) -> None:
    processes.in_django(
        head,
        "from django.contrib.auth.models import User\n"
        f"User.objects.create_superuser({USER!r}, password={PASSWORD!r})\n",
    )
    status, headers, page = ask(head, "/admin/login/", **FROM_PROXY)
    assert status == 200
    assert headers["strict-transport-security"] == "max-age=31536000"
    token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page)
    assert token is not None
    cookie = headers["set-cookie"]
    assert "Secure" in cookie
    form = {"username": USER, "password": PASSWORD, "csrfmiddlewaretoken": token.group(1), "next": "/admin/"}
    sent = {
        **FROM_PROXY,
        "Content-Type": "application/x-www-form-urlencoded",
        "Cookie": cookie.partition(";")[0],
        "Host": "127.0.0.1",
        "Origin": "https://127.0.0.1",
    }
    status, headers, _ = ask(head, "/admin/login/", "POST", urlencode(form), **sent)
    assert (status, headers["location"]) == (302, "/admin/")
    assert "Secure" in headers["set-cookie"] and "HttpOnly" in headers["set-cookie"]
    assert ask(head, "/admin/login/", "POST", urlencode(form), **{**sent, "Origin": "https://evil.example"})[0] == 403


def test_a_client_that_is_no_proxy_cannot_say_that_it_came_over_tls(toy_folder: Any, tmp_path: Any) -> None:
    with head_with(toy_folder("llama"), tmp_path, FORWARDED_ALLOW_IPS="192.0.2.1") as (head, _):
        assert ask(head, "/admin/login/", **FROM_PROXY)[0] == 301
        assert ask(head, "/metrics", **FROM_PROXY)[0] == 401  # and who passes something on is not this machine


@pytest.mark.parametrize("header", ["PATH_INFO: /livez", "SCRIPT_NAME: /elsewhere", "REMOTE_USER: watcher"])
def test_clients_of_a_trusted_proxy_cannot_name_another_path_or_user(head: Served, header: str) -> None:
    request = f"GET /nothing-here HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Forwarded-Proto: https\r\n{header}\r\n\r\n"
    answer = raw(head, request.encode())
    assert answer.startswith(b"HTTP/1.1 404"), answer
    assert b"elsewhere" not in answer


@pytest.mark.parametrize(
    ("request_line", "header_lines", "status"),
    [
        ("GET /livez?" + "x" * 5000, [], b"414"),
        ("GET /livez", ["X-Long: " + "x" * 9000], b"431"),
        ("GET /livez", [f"X-{index}: y" for index in range(120)], b"431"),
        ("GET /livez", ["X-Long: " + "x" * 7000], b"200"),
    ],
    ids=["a long line", "a long header", "many headers", "within the limits"],
)
def test_e08_headers_have_their_limits(head: Served, request_line: str, header_lines: list[str], status: bytes) -> None:
    lines = [f"{request_line} HTTP/1.1", "Host: 127.0.0.1", *header_lines]
    assert raw(head, "\r\n".join([*lines, "", ""]).encode()).startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize("opening", ['[{"a":', "["])
def test_e08_json_of_10000_levels_is_a_400(served: tuple[Served, str], opening: str) -> None:
    head, key = served
    sent = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    assert ask(head, "/v1/chat/completions", "POST", opening * 10_000, **sent)[0] == 400
    sent["Authorization"] = f"Bearer {processes.SECRET}"
    assert ask(head, "/mesh/announce", "POST", opening * 10_000, **sent)[0] in (400, 413)
