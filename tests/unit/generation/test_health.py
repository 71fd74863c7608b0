"""/livez and /readyz of a head."""

from __future__ import annotations

from typing import Any

import pytest
from django.apps import apps
from django.test import Client


class Head:
    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state

    def ready(self) -> dict[str, Any]:
        return self.state


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda head: monkeypatch.setattr(apps.get_app_config("generation"), "runtime", head)


@pytest.mark.parametrize("head", [None, Head({"ready": False, "detail": "Layers 2:4 are missing."})])
def test_a_head_is_alive_whatever_its_state(serve: Any, head: Head | None) -> None:
    serve(head)
    response = Client().get("/livez")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})


def test_a_head_with_a_route_is_ready(serve: Any) -> None:
    serve(Head({"ready": True, "model": "toy", "hops": 2}))
    response = Client().get("/readyz")
    assert (response.status_code, response.json()) == (200, {"ready": True, "model": "toy", "hops": 2})


def test_a_head_without_a_route_says_what_is_missing(serve: Any) -> None:
    serve(Head({"ready": False, "detail": "Layers 2:4 are missing."}))
    response = Client().get("/readyz")
    assert (response.status_code, response.json()["detail"]) == (503, "Layers 2:4 are missing.")


def test_a_head_that_loads_is_not_ready(serve: Any) -> None:
    serve(None)
    response = Client().get("/readyz")
    assert response.status_code == 503
    assert response.json()["ready"] is False


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
def test_probes_need_neither_key_nor_database(serve: Any, path: str) -> None:
    serve(Head({"ready": True}))
    assert Client().get(path).status_code == 200  # the database is not available to this test
    assert Client().post(path).status_code == 405
