from __future__ import annotations

from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from nodes import metrics_access
from nodes.metrics_access import FORWARDED_HEADERS

TOKEN = "a-token-for-whoever-scrapes"


def ask(peer: str = "127.0.0.1", *, method: str = "GET", **headers: str) -> HttpResponse:
    request: HttpRequest = RequestFactory().generic(method, "/metrics", REMOTE_ADDR=peer, headers=headers)
    return metrics_access.answer(request, lambda: b"meshnet:node_up 1\n")


@pytest.fixture(autouse=True)
def no_token(settings: Any) -> None:
    settings.MESHNET_METRICS_TOKEN = ""


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"])
def test_this_machine_may_read(peer: str) -> None:
    response = ask(peer)
    assert (response.status_code, response.content) == (200, b"meshnet:node_up 1\n")
    assert response["Content-Type"].startswith("text/plain; version=")


@pytest.mark.parametrize("peer", ["10.0.0.7", "192.168.1.2", "2001:db8::1", "::ffff:10.0.0.7", "", "localhost"])
def test_other_machines_and_nameless_sockets_may_not(peer: str) -> None:
    response = ask(peer)
    assert response.status_code == 401
    assert response["WWW-Authenticate"].startswith("Bearer")
    assert b"node_up" not in response.content


@pytest.mark.parametrize("header", FORWARDED_HEADERS)
def test_a_request_that_a_proxy_passed_on_is_not_from_this_machine(header: str) -> None:
    assert ask(**{header: "127.0.0.1"}).status_code == 401
    assert ask(**{header: ""}).status_code == 401


@pytest.mark.parametrize("peer", ["127.0.0.1", "10.0.0.7"])
def test_the_token_opens_from_anywhere(settings: Any, peer: str) -> None:
    settings.MESHNET_METRICS_TOKEN = TOKEN
    for scheme in ("Bearer", "bearer"):
        headers = {"Authorization": f"{scheme} {TOKEN}", "X-Forwarded-For": "10.1.1.1"}
        assert ask(peer, **headers).status_code == 200


@pytest.mark.parametrize("given", ["", "Bearer", "Bearer ", "Bearer wrong", f"Basic {TOKEN}", TOKEN, "Bearer tökén"])
def test_anything_else_does_not(settings: Any, given: str) -> None:
    settings.MESHNET_METRICS_TOKEN = TOKEN
    assert ask("10.0.0.7", Authorization=given).status_code == 401


@pytest.mark.parametrize("given", ["Bearer ", "Bearer"])
def test_an_empty_token_opens_nothing(given: str) -> None:
    assert ask("10.0.0.7", Authorization=given).status_code == 401


def test_the_mesh_secret_is_another_one(settings: Any) -> None:
    settings.MESHNET_SECRET = "the-secret-of-the-whole-mesh"
    assert ask("10.0.0.7", Authorization=f"Bearer {settings.MESHNET_SECRET}").status_code == 401


def test_reading_is_all_that_one_can_do() -> None:
    assert ask(method="HEAD").status_code == 200
    response = ask(method="POST")
    assert (response.status_code, response["Allow"]) == (405, "GET, HEAD")


def test_nothing_is_made_for_those_who_may_not_read() -> None:
    def exposition() -> bytes:
        raise AssertionError("it was made")

    request = RequestFactory().get("/metrics", REMOTE_ADDR="10.0.0.7")
    assert metrics_access.answer(request, exposition).status_code == 401
