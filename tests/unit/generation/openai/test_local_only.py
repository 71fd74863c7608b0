"""MESHNET_API_AUTH=off: who is let in without a key."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client

from .conftest import CHAT, MODEL, FakeHead, assert_is_error

pytestmark = pytest.mark.django_db

ANYWHERE = "0.0.0.0"  # noqa: S104  # nothing is bound
LOCAL = {"REMOTE_ADDR": "127.0.0.1", "HTTP_HOST": "localhost:8000"}


@pytest.fixture(autouse=True)
def off(settings: Any) -> None:
    settings.MESHNET_API_AUTH = "off"
    settings.ALLOWED_HOSTS = ["*"]  # so that what is refused is refused here


def ask(path: str = "/v1/chat/completions", **extra: str) -> Any:
    extra = {"content_type": "application/json", **LOCAL, **extra}
    return Client().post(path, data=json.dumps(CHAT), **extra)  # type: ignore[arg-type]


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"])
@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8000", "127.0.0.1:8000", "[::1]", "[::1]:8000"])
def test_a_program_on_this_machine_needs_no_key(head: FakeHead, peer: str, host: str) -> None:
    assert ask(REMOTE_ADDR=peer, HTTP_HOST=host).status_code == 200


@pytest.mark.parametrize("peer", ["10.0.0.7", "fe80::1", "::ffff:10.0.0.7", ANYWHERE, "", "localhost", "unix:"])
def test_another_peer_is_refused(head: FakeHead, peer: str) -> None:
    assert_is_error(ask(REMOTE_ADDR=peer), 403, "permission_denied")
    assert head.asked == []


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "evil.localhost", "10.0.0.7:8000", "127.0.0.1.evil.example", "",
     "user@localhost", "localhost:80:80", "[::2]", "[127.0.0.1]", "127.0.0.1:", "localhost:x", ANYWHERE, "2130706433"],
)  # fmt: skip
def test_a_host_that_is_not_this_machine_by_name_is_refused(head: FakeHead, host: str) -> None:
    assert_is_error(ask(HTTP_HOST=host), 403, "permission_denied")
    assert head.asked == []


@pytest.mark.parametrize(
    "header",
    ["HTTP_FORWARDED", "HTTP_X_FORWARDED_FOR", "HTTP_X_FORWARDED_PROTO", "HTTP_X_FORWARDED_HOST", "HTTP_VIA",
     "HTTP_X_FORWARDED", "HTTP_X_FORWARDED_SERVER", "HTTP_X_REAL_IP", "HTTP_X_CLIENT_IP", "HTTP_TRUE_CLIENT_IP",
     "HTTP_CF_CONNECTING_IP", "HTTP_X_ORIGINAL_FORWARDED_FOR"],
)  # fmt: skip
@pytest.mark.parametrize("value", ["127.0.0.1", ""])
def test_a_forwarded_request_is_refused_whatever_it_says(head: FakeHead, header: str, value: str) -> None:
    assert_is_error(ask(**{header: value}), 403, "permission_denied")
    assert head.asked == []


@pytest.mark.parametrize(
    "extra",
    [{"HTTP_ORIGIN": "https://evil.example"}, {"HTTP_ORIGIN": "null"}, {"HTTP_ORIGIN": ""},
     {"HTTP_ORIGIN": "http://localhost.evil.example"}, {"HTTP_SEC_FETCH_SITE": "cross-site"}],
)  # fmt: skip
def test_a_page_of_somebody_else_in_a_browser_here_is_refused(head: FakeHead, extra: dict[str, str]) -> None:
    """A browser sends such a POST without asking before, when its body is plain text."""
    assert_is_error(ask(content_type="text/plain", **extra), 403, "permission_denied")
    assert head.asked == []


@pytest.mark.parametrize("origin", ["http://localhost:3000", "http://127.0.0.1", "https://chat.example.org"])
def test_a_page_from_this_machine_or_of_a_named_origin_is_let_in(head: FakeHead, settings: Any, origin: str) -> None:
    settings.MESHNET_CORS_ORIGINS = ["https://chat.example.org"]
    assert ask(HTTP_ORIGIN=origin, HTTP_SEC_FETCH_SITE="cross-site").status_code == 200


@pytest.mark.parametrize("path", ["/v1", "/v1/models", f"/v1/models/{MODEL}", "/v1/none", "/v1/"])
def test_all_of_v1_is_refused(head: FakeHead, path: str) -> None:
    response = Client().get(path, REMOTE_ADDR="10.0.0.7", HTTP_HOST="localhost")
    assert_is_error(response, 403, "permission_denied")


def test_other_pages_are_left_alone(head: FakeHead) -> None:
    response = Client().get("/admin/", REMOTE_ADDR="10.0.0.7", HTTP_HOST="head.example")
    assert (response.status_code, response.headers["Location"]) == (302, "/admin/login/?next=/admin/")


def test_with_keys_nothing_of_this_matters(head: FakeHead, key: str, settings: Any) -> None:
    settings.MESHNET_API_AUTH = "keys"
    extra = {"REMOTE_ADDR": "10.0.0.7", "HTTP_HOST": "head.example", "HTTP_X_FORWARDED_FOR": "1.2.3.4"}
    assert ask(**extra, HTTP_AUTHORIZATION=f"Bearer {key}").status_code == 200
    assert_is_error(ask(**extra), 401, "invalid_api_key")
