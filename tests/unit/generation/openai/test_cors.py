"""Pages of other origins: off unless MESHNET_CORS_ORIGINS names them, and then for /v1 alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.test import Client

from .conftest import CHAT, FakeHead, assert_is_error

pytestmark = pytest.mark.django_db

ORIGIN = "https://chat.example.org"
PREFLIGHT = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
}


@pytest.fixture
def cors(settings: Any) -> Iterator[None]:
    """As settings.py does it when an origin is named (test_settings_docs.py)."""
    settings.CORS_ALLOWED_ORIGINS = settings.MESHNET_CORS_ORIGINS = [ORIGIN]
    middleware = list(settings.MIDDLEWARE)
    middleware.insert(
        middleware.index("generation.openai.middleware.OpenAIMiddleware"), "corsheaders.middleware.CorsMiddleware"
    )
    settings.MIDDLEWARE = middleware
    yield


def cors_headers(response: Any) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name.lower().startswith("access-control-")}


def chat(key: str, origin: str = ORIGIN, body: Any = CHAT) -> Any:
    return Client().post(
        "/v1/chat/completions",
        data=json.dumps(body),
        content_type="application/json",
        headers={"Origin": origin, "Authorization": f"Bearer {key}"},
    )


def test_it_is_off_by_default(head: FakeHead, key: str) -> None:
    assert not any("cors" in name for name in django_settings.MIDDLEWARE)
    assert cors_headers(chat(key)) == {}
    response = Client().options("/v1/chat/completions", headers={"Origin": ORIGIN, **PREFLIGHT})
    assert_is_error(response, 401, "invalid_api_key")


def test_a_preflight_of_a_named_origin_needs_no_key(head: FakeHead, cors: None) -> None:
    response = Client().options("/v1/chat/completions", headers={"Origin": ORIGIN, **PREFLIGHT})
    headers = cors_headers(response)
    assert (response.status_code, response.content) == (200, b"")
    assert headers["access-control-allow-origin"] == ORIGIN
    assert headers["access-control-allow-headers"].split(", ")[:2] == ["*", "authorization"]
    assert "POST" in headers["access-control-allow-methods"]
    assert "access-control-allow-credentials" not in headers
    assert head.asked == []


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "http://chat.example.org", "null", f"{ORIGIN}.evil.example"]
)
def test_another_origin_gets_no_permission(head: FakeHead, cors: None, key: str, origin: str) -> None:
    preflight = Client().options("/v1/chat/completions", headers={"Origin": origin, **PREFLIGHT})
    assert cors_headers(preflight) == cors_headers(chat(key, origin)) == {}


@pytest.mark.parametrize("body", [CHAT, {**CHAT, "stream": True}])
def test_answers_can_be_read_with_their_headers(head: FakeHead, cors: None, key: str, body: Any) -> None:
    response = chat(key, body=body)
    headers = cors_headers(response)
    assert response.status_code == 200
    assert headers["access-control-allow-origin"] == ORIGIN
    assert "access-control-allow-credentials" not in headers
    exposed = headers["access-control-expose-headers"].split(", ")
    assert {"x-request-id", "retry-after", "x-ratelimit-remaining-requests", "x-ratelimit-reset-tokens"} <= set(exposed)


def test_errors_can_be_read_too(head: FakeHead, cors: None, settings: Any) -> None:
    """Also those that Django itself gives, and that become JSON further out."""
    assert_is_error(refused := chat("wrong"), 401, "invalid_api_key")
    settings.ALLOWED_HOSTS = ["elsewhere"]
    assert_is_error(host := chat("wrong"), 400, "bad_request")
    unknown = Client().get("/v1/none", headers={"Origin": ORIGIN}, HTTP_HOST="elsewhere")
    assert_is_error(unknown, 404, "unknown_url")
    for response in (refused, host, unknown):
        assert cors_headers(response)["access-control-allow-origin"] == ORIGIN


@pytest.mark.parametrize("path", ["/admin/", "/v10/models", "/", "/metrics", "/livez"])
def test_other_pages_have_none(cors: None, path: str) -> None:
    assert cors_headers(Client().get(path, headers={"Origin": ORIGIN})) == {}
