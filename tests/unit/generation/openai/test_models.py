"""GET /v1/models and /v1/models/<id>."""

from __future__ import annotations

import time
from typing import Any

import pytest
from django.apps import apps
from django.test import Client

from .conftest import MODEL, FakeHead, assert_is_error


def get(path: str, key: str, method: str = "get") -> Any:
    return getattr(Client(), method)(path, headers={"Authorization": f"Bearer {key}"})


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/"])
def test_the_list_has_the_exact_shape(head: FakeHead, key: str, path: str) -> None:
    response = get(path, key)
    assert response.status_code == 200
    created = response.json()["data"][0]["created"]
    assert isinstance(created, int) and created <= time.time()
    assert response.json() == {
        "object": "list",
        "data": [{"id": MODEL, "object": "model", "created": created, "owned_by": "meshnet"}],
    }


@pytest.mark.parametrize("path", [f"/v1/models/{MODEL}", f"/v1/models/{MODEL}/", "/v1/models/toy%2Fllama"])
def test_one_model_is_found_by_an_id_with_slashes(head: FakeHead, key: str, path: str) -> None:
    response = get(path, key)
    assert response.status_code == 200
    assert (response.json()["id"], response.json()["object"]) == (MODEL, "model")


@pytest.mark.parametrize("name", ["gpt-4o", "toy", "toy/llama/x", "../admin", "\u65e5"])
def test_another_model_is_a_404(head: FakeHead, key: str, name: str) -> None:
    assert_is_error(get(f"/v1/models/{name}", key), 404, "model_not_found", "model")


@pytest.mark.parametrize("path", ["/v1/models", f"/v1/models/{MODEL}"])
def test_503_while_the_head_loads(head: FakeHead, key: str, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr(apps.get_app_config("generation"), "runtime", None)
    assert_is_error(get(path, key), 503, "not_ready")


@pytest.mark.parametrize("method", ["post", "put", "delete", "options"])
@pytest.mark.parametrize("path", ["/v1/models", f"/v1/models/{MODEL}"])
def test_other_methods_are_a_405(head: FakeHead, key: str, method: str, path: str) -> None:
    assert_is_error(get(path, key, method), 405, "method_not_allowed")


def test_head_is_answered_without_a_body(head: FakeHead, key: str) -> None:
    response = get("/v1/models", key, "head")
    assert (response.status_code, response.content) == (200, b"")
