"""/livez and /readyz of a head."""

from __future__ import annotations

from typing import Any

import pytest
from django.apps import apps
from django.test import Client


class Head:
    def __init__(self, *, ready: bool) -> None:
        self._ready = ready

    def is_ready(self) -> bool:
        return self._ready


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda head: monkeypatch.setattr(apps.get_app_config("generation"), "runtime", head)


@pytest.mark.parametrize("head", [None, Head(ready=False)])
def test_a_head_is_alive_whatever_its_state(serve: Any, head: Head | None) -> None:
    serve(head)
    response = Client().get("/livez")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})


@pytest.mark.parametrize(
    ("head", "status", "said"),
    [(Head(ready=True), 200, "ok"), (Head(ready=False), 503, "no_route"), (None, 503, "loading")],
)
def test_a_head_is_ready_when_a_generation_could_start(serve: Any, head: Head | None, status: int, said: str) -> None:
    serve(head)
    response = Client().get("/readyz")
    assert (response.status_code, response.json()) == (status, {"status": said})


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
def test_probes_need_neither_key_nor_database(serve: Any, path: str) -> None:
    serve(Head(ready=True))
    assert Client().get(path).status_code == 200  # the database is not available to this test
    assert Client().post(path).status_code == 405
