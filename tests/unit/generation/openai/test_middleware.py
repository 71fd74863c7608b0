"""What every answer under /v1 carries, also those that no view gave."""

from __future__ import annotations

from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory

from generation.openai.middleware import OpenAIMiddleware

from .conftest import CHAT, MODEL, FakeHead, assert_is_error

UNKNOWN = ["/v1", "/v1/", "/v1/nothing", "/v1/chat", "/v1/chat/completions/x", "/v1/embeddings", "/v1//models"]


@pytest.mark.parametrize("path", UNKNOWN)
@pytest.mark.parametrize("method", ["get", "post", "put", "delete", "options"])
@pytest.mark.parametrize("debug", [False, True], ids=["", "debug"])
def test_c09_every_other_path_is_a_404_in_json(path: str, method: str, debug: bool, settings: Any) -> None:
    settings.DEBUG = debug
    client = Client(enforce_csrf_checks=True)
    assert_is_error(getattr(client, method)(path), 404, "unknown_url")


@pytest.mark.parametrize("debug", [False, True], ids=["", "debug"])
def test_a_refused_host_is_json_too(debug: bool, settings: Any) -> None:
    settings.DEBUG = debug
    settings.ALLOWED_HOSTS = ["localhost"]
    assert_is_error(Client().get("/v1/models", headers={"Host": "evil.example"}), 400, "bad_request")


@pytest.mark.parametrize("debug", [False, True], ids=["", "debug"])
def test_a_bug_below_the_views_is_json_too(debug: bool, settings: Any) -> None:
    settings.DEBUG = debug

    def broken(request: HttpRequest) -> HttpResponse:
        return HttpResponse("<html>Traceback</html>", status=500)

    response = OpenAIMiddleware(broken)(RequestFactory().get("/v1/models"))
    assert isinstance(response, HttpResponse)
    assert response.status_code == 500
    assert b"Traceback" not in response.content
    assert response.headers["Content-Type"] == "application/json"


@pytest.mark.parametrize("path", ["/nothing", "/v10/models", "/admin/nothing"])
def test_other_paths_are_left_alone(path: str, db: None) -> None:
    response = Client().get(path, follow=True)
    assert response.headers["Content-Type"].startswith("text/html")
    assert "x-request-id" not in response.headers


def test_csrf_does_not_stand_in_the_way_of_the_api(head: FakeHead, key: str) -> None:
    client = Client(enforce_csrf_checks=True)
    client.cookies["csrftoken"] = "x" * 32
    response = client.post(
        "/v1/chat/completions", CHAT, content_type="application/json", headers={"Authorization": f"Bearer {key}"}
    )
    assert response.status_code == 200


@pytest.mark.parametrize("given", ["a", "req-1.2_3", "A" * 128])
def test_a_sane_request_id_is_taken_over(given: str, head: FakeHead, key: str) -> None:
    for path in ("/v1/models", f"/v1/models/{MODEL}", "/v1/nothing"):
        response = Client().get(path, headers={"Authorization": f"Bearer {key}", "x-request-id": given})
        assert response.headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", " ", "a b", "A" * 129, "a\r\nx: y", "<script>", "a,b", "\xe9"])
def test_any_other_request_id_is_replaced_by_a_new_one(given: str) -> None:
    ids = {Client().get("/v1/nothing", headers={"x-request-id": given}).headers["x-request-id"] for _ in range(2)}
    assert len(ids) == 2
    assert all(one.startswith("req_") and len(one) == 36 for one in ids)
