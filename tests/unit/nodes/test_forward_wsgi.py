"""A step is answered without Django's request to the same effect as with it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from django.apps import apps
from django.test import RequestFactory, override_settings

from nodes import forward_wsgi, framing, views, wire
from nodes.framing import Payload
from nodes.runtime import NodeRuntime
from tests.meshes import ranges, running_nodes

SECRET = "the secret of this test"
SESSION = "s" * 22


@pytest.fixture(scope="module")
def nodes(toy_folder: Any) -> Iterator[list[NodeRuntime]]:
    with running_nodes(toy_folder("llama"), ranges(0, 2, 4)) as running:
        yield running


@pytest.fixture(params=[0, 1], ids=["inner", "tail"])
def node(
    request: pytest.FixtureRequest, nodes: list[NodeRuntime], monkeypatch: pytest.MonkeyPatch
) -> Iterator[NodeRuntime]:
    runtime = nodes[request.param]
    monkeypatch.setattr(apps.get_app_config("nodes"), "runtime", runtime)
    with override_settings(MESHNET_SECRET=SECRET, MESHNET_SECRET_ALSO=""):
        yield runtime
    runtime.evict(everything=True)


def body(tokens: int = 3, **changes: Any) -> bytes:
    hidden = torch.randn(1, tokens, 64, generator=torch.Generator().manual_seed(0))
    return framing.encode(Payload(hidden, **changes))


class Broken(io.BytesIO):
    def read(self, size: int | None = -1) -> bytes:
        raise OSError("gone")


def environ(data: bytes, **headers: str) -> dict[str, Any]:
    made: dict[str, Any] = RequestFactory().generic("POST", "/forward", data, content_type=wire.TENSOR_TYPE).environ
    made["wsgi.input"] = io.BytesIO(data)
    made["HTTP_AUTHORIZATION"] = f"Bearer {SECRET}"
    for name, value in headers.items():
        if value:
            made[name] = value
        else:
            made.pop(name, None)
    return made


CACHED = {"HTTP_X_MESHNET_SESSION": SESSION, "HTTP_X_MESHNET_CACHE": "prefill"}
MISS = {**CACHED, "HTTP_X_MESHNET_CACHE": "decode", "HTTP_X_MESHNET_PAST_LEN": "7"}
NAN = framing.encode(Payload(torch.full((1, 1, 64), float("nan"))))
CASES: dict[str, tuple[int, bytes, dict[str, str]]] = {
    "a stateless step": (200, body(), {}),
    "a prefill": (200, body(), CACHED),
    "a miss": (409, body(1), MISS),
    "no secret": (401, body(), {"HTTP_AUTHORIZATION": ""}),
    "another secret": (401, body(), {"HTTP_AUTHORIZATION": "Bearer another"}),
    "another type": (415, body(), {"CONTENT_TYPE": "text/plain"}),
    "the type with a parameter": (200, body(), {"CONTENT_TYPE": "Application/Octet-Stream; x=y"}),
    "no type": (415, body(), {"CONTENT_TYPE": ""}),
    "no length": (411, body(), {"CONTENT_LENGTH": ""}),
    "a length that is none": (411, body(), {"CONTENT_LENGTH": "+5"}),
    "too long": (413, body(), {"CONTENT_LENGTH": "99999999999"}),
    "shorter than its length": (400, body(), {"CONTENT_LENGTH": "100000"}),
    "garbage": (400, b"garbage", {}),
    "nothing": (400, b"", {"CONTENT_TYPE": wire.TENSOR_TYPE, "CONTENT_LENGTH": "0"}),
    "not a number": (400, NAN, {}),
    "a doubled header": (400, body(), {**CACHED, "HTTP_X_MESHNET_SESSION": f"{SESSION},{SESSION}"}),
    "another model": (421, body(), {"HTTP_X_MESHNET_MODEL": "another"}),
}


def by_wsgi(asked: dict[str, Any]) -> tuple[str, dict[str, str], bytes]:
    said: list[Any] = []
    content = forward_wsgi.application(asked, lambda status, headers: said.extend([status, headers]))
    data = b"".join(content)
    if hasattr(content, "close"):
        content.close()
    status, headers = said
    assert len({name for name, _ in headers}) == len(headers)
    return status, dict(headers), data


def by_django(asked: dict[str, Any]) -> tuple[str, dict[str, str], bytes]:
    response = views.forward(RequestFactory().request(**asked))
    return f"{response.status_code} {response.reason_phrase}", dict(response.items()), response.content


@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("node")
def test_both_ways_answer_the_same(name: str) -> None:
    expected, data, headers = CASES[name]
    status, fields, content = by_wsgi(environ(data, **headers))
    status_there, fields_there, content_there = by_django(environ(data, **headers))
    assert int(status.partition(" ")[0]) == expected
    assert (status, content) == (status_there, content_there)
    for told in (fields, fields_there):
        told.pop("Server-Timing", None)
    assert fields == fields_there


@pytest.mark.usefixtures("node")
def test_a_body_that_breaks_off_is_told_and_the_connection_can_be_kept() -> None:
    asked = environ(body())
    asked["wsgi.input"] = Broken()
    status, fields, content = by_wsgi(asked)
    assert status == "400 Bad Request"
    assert b"broke off" in content
    assert "Connection" not in fields


def test_a_bug_is_a_500_in_json_without_its_text(node: NodeRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> None:
        raise RuntimeError("inner matters")

    monkeypatch.setattr(node, "forward", fail)
    status, fields, content = by_wsgi(environ(body()))
    assert (status, fields["Content-Type"]) == ("500 Internal Server Error", "application/json")
    assert b"inner matters" not in content


def test_while_the_node_loads_a_step_is_told_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apps.get_app_config("nodes"), "runtime", None)
    with override_settings(MESHNET_SECRET=SECRET):
        status, _, _ = by_wsgi(environ(body()))
    assert status == "503 Service Unavailable"


@pytest.mark.parametrize(("method", "path"), [("GET", "/forward"), ("POST", "/forward/"), ("POST", "/sessions/evict")])
def test_everything_else_is_djangos(method: str, path: str) -> None:
    assert not forward_wsgi.takes(RequestFactory().generic(method, path).environ)


@pytest.mark.usefixtures("node")
def test_the_socket_holds_the_answer_back_until_it_is_whole() -> None:
    said: list[Any] = []

    class Socket:
        def setsockopt(self, level: int, option: int, value: int) -> None:
            said.append(value)

    asked = {**environ(body()), "gunicorn.socket": Socket()}
    content = forward_wsgi.application(asked, lambda status, headers: None)
    for data in content:
        assert said in ([1], [])  # [] where the system has no such option
        said.append(len(data))
    content.close()  # type: ignore[attr-defined]
    assert said[-1] in (0, len(data))
