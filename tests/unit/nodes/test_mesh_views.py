"""`POST /mesh/announce` and `/mesh/join`, as nodes reach them: before the head's host check, sessions and CSRF."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.apps import apps
from django.test import Client

from nodes.joining import ServedModel
from nodes.models import LayerReservation, Node
from tests.unit.nodes.announced import BOOT, body
from tests.unit.nodes.fake_node import SECRET, FakeNode
from tests.unit.nodes.test_joining import costs

pytestmark = pytest.mark.django_db

PATHS = ("/mesh/announce", "/mesh/join")
GIB = 1024**3


@pytest.fixture(autouse=True)
def secret(settings: Any) -> None:
    settings.MESHNET_SECRET = SECRET
    settings.ALLOWED_HOSTS = ["mesh.example.org"]


@pytest.fixture
def node(make_node: Callable[..., FakeNode]) -> FakeNode:
    node = make_node("0:15")
    node.boot_id = BOOT
    return node


def post(path: str, data: Any, **headers: Any) -> Any:
    sent = {"authorization": f"Bearer {SECRET}", "host": "10.0.0.1:8000", **headers}
    content = data if isinstance(data, bytes) else json.dumps(data).encode()
    return Client(enforce_csrf_checks=True).post(
        path, content, content_type=headers.pop("content_type", "application/json"), headers=sent
    )


def error(response: Any) -> tuple[int, str]:
    return response.status_code, json.loads(response.content)["error"]


def test_a_node_announces_itself_under_any_name_of_the_head(node: FakeNode, settings: Any) -> None:
    settings.MESHNET_ANNOUNCE_SECONDS = 7.5
    response = post("/mesh/announce", body(url=node.url))
    assert (response.status_code, response.json()) == (200, {"url": node.url, "beat_seconds": 7.5})
    assert Node.objects.get().url == node.url
    assert not response.cookies


def test_the_head_takes_the_address_that_it_sees(node: FakeNode) -> None:
    port = int(node.url.rpartition(":")[2])
    assert post("/mesh/announce", body(url=None, port=port)).json()["url"] == node.url


@pytest.mark.parametrize("header", ["x-forwarded-for", "forwarded", "via", "x-real-ip"])
def test_behind_a_proxy_a_node_must_say_where_it_is(node: FakeNode, header: str) -> None:
    port = int(node.url.rpartition(":")[2])
    response = post("/mesh/announce", body(url=None, port=port), **{header: "10.0.0.7"})
    assert error(response) == (400, "bad_request")
    assert "MESHNET_URL" in response.json()["detail"]
    assert error(post("/mesh/join", {"port": 8001, "memory_bytes": GIB}, **{header: "127.0.0.1"}))[0] == 400
    assert post("/mesh/announce", body(url=node.url), **{header: "10.0.0.7"}).status_code == 200


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("given", ["", "Bearer", "Bearer wrong", f"Basic {SECRET}", SECRET, f"Bearer {SECRET}x"])
def test_e02_nobody_without_the_secret_gets_in(path: str, given: str, node: FakeNode) -> None:
    response = post(path, body(url=node.url), authorization=given)
    assert error(response) == (401, "unauthorized")
    assert response["Connection"] == "close", "the body was not read"
    assert node.requests == []


@pytest.mark.parametrize("path", PATHS)
def test_e02_no_secret_of_the_head_lets_nobody_in(path: str, settings: Any) -> None:
    settings.MESHNET_SECRET = ""
    assert error(post(path, {}, authorization="Bearer ")) == (401, "unauthorized")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["get", "put", "patch", "delete", "options"])
def test_only_post_is_supported(path: str, method: str) -> None:
    response = getattr(Client(), method)(path, headers={"authorization": f"Bearer {SECRET}"})
    assert error(response) == (405, "method_not_allowed")
    assert response["Allow"] == "POST"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("content", [b" ", b"{", b"[]", b"1", b'"x"', b"\xff\xfe", b"[" * 10_000, b"{}", b'{"x": 1}'])
def test_what_is_no_announcement_is_a_bad_request(path: str, content: bytes) -> None:
    assert error(post(path, content)) == (400, "bad_request")


@pytest.mark.parametrize("path", PATHS)
def test_other_content_is_not_read(path: str) -> None:
    response = Client().post(path, {"a": 1}, headers={"authorization": f"Bearer {SECRET}"})
    assert error(response) == (415, "unsupported_media_type")


@pytest.mark.parametrize("path", PATHS)
def test_a_body_without_a_length_or_with_a_large_one_is_not_read(path: str) -> None:
    assert error(post(path, b"x" * (64 * 1024 + 1))) == (413, "too_large")
    response = Client().generic(
        "POST", path, b"{}", content_type="application/json",
        headers={"authorization": f"Bearer {SECRET}"}, CONTENT_LENGTH="",
    )  # fmt: skip
    assert error(response) == (411, "length_required")


def test_a_url_elsewhere_is_forbidden(node: FakeNode) -> None:
    assert error(post("/mesh/announce", body(url="https://10.0.0.7"))) == (403, "outside_networks")
    assert error(post("/mesh/join", {"url": "https://10.0.0.7", "memory_bytes": GIB})) == (403, "outside_networks")


def test_a_node_that_is_not_there_is_a_conflict(dead: str) -> None:
    assert error(post("/mesh/announce", body(url=dead))) == (409, "not_verified")


def test_e05_a_doubled_secret_is_none(node: FakeNode) -> None:
    response = post("/mesh/announce", body(url=node.url), authorization=f"Bearer {SECRET},Bearer {SECRET}")
    assert error(response) == (401, "unauthorized")


def test_e05_what_looks_like_the_header_is_not_it(node: FakeNode) -> None:
    response = Client().post(
        "/mesh/announce",
        json.dumps(body(url=node.url)),
        content_type="application/json",
        AUTHORIZATION=f"Bearer {SECRET}",
    )
    assert error(response) == (401, "unauthorized")


@pytest.mark.parametrize("path", ["/mesh/", "/mesh/announce/", "/mesh/sessions", "/mesh/join/x"])
def test_other_paths_are_not_there(path: str) -> None:
    assert error(post(path, {})) == (404, "not_found")


def test_other_paths_of_the_head_keep_their_host_check() -> None:
    assert Client().get("/mesh", headers={"host": "10.0.0.1"}).status_code == 400


def test_a_machine_is_offered_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ServedModel("toy", "sha256:toy", "float32", costs(4))
    monkeypatch.setattr(apps.get_app_config("nodes"), "served_model", model)
    response = post("/mesh/join", {"port": 8001, "memory_bytes": 8 * GIB})
    assert response.status_code == 200
    answer = response.json()
    assert {name: answer[name] for name in ("url", "model", "fingerprint", "dtype", "n_layers", "layers")} == {
        "url": "http://127.0.0.1:8001",
        "model": "toy",
        "fingerprint": "sha256:toy",
        "dtype": "float32",
        "n_layers": 4,
        "layers": "0:4",
    }
    assert (answer["context_length"], answer["reserved_seconds"]) == (512, 60)
    assert LayerReservation.objects.get(url="http://127.0.0.1:8001").end_layer == 4
    refused = post("/mesh/join", {"port": 8001, "memory_bytes": 5})
    assert error(refused) == (409, "no_room")
    assert refused.json()["missing_bytes"] > GIB - 5
