from __future__ import annotations

import json
from datetime import timedelta
from typing import Any
from unittest.mock import Mock

import pytest
import time_machine
from django.db import DatabaseError, connection
from django.db.models.query import QuerySet
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from generation.models import APIKey

from .conftest import CHAT, FakeHead, assert_is_error

pytestmark = pytest.mark.django_db


def ask(authorization: str | None, path: str = "/v1/chat/completions") -> Any:
    headers = {} if authorization is None else {"Authorization": authorization}
    return Client().post(path, data=json.dumps(CHAT), content_type="application/json", headers=headers)


@pytest.mark.parametrize("authorization", [None, "", "Bearer", "Bearer ", "Basic dTpw", "sk-1", "Token abc.def"])
def test_c09_a_missing_key_is_a_401(head: FakeHead, authorization: str | None) -> None:
    response = ask(authorization)
    error = assert_is_error(response, 401, "invalid_api_key")
    assert error["type"] == "invalid_request_error"
    assert response.headers["WWW-Authenticate"] == "Bearer"
    assert head.asked == []


@pytest.mark.parametrize("wrong", ["x", "abcdefgh.", "abcdefgh.0000", "\xe9", "a b", "a\x00b", "." * 300, "%00"])
def test_a_wrong_key_is_a_401_and_is_not_repeated(head: FakeHead, wrong: str) -> None:
    response = ask(f"Bearer {wrong}")
    assert_is_error(response, 401, "invalid_api_key")
    assert len(wrong) < 4 or wrong not in response.content.decode()


def test_the_right_prefix_with_a_wrong_secret_is_a_401(head: FakeHead, key: str) -> None:
    assert_is_error(ask(f"Bearer {key[:-1]}"), 401, "invalid_api_key")
    assert_is_error(ask(f"Bearer {key}x"), 401, "invalid_api_key")


def test_a_revoked_key_is_a_401(head: FakeHead, key: str) -> None:
    assert ask(f"Bearer {key}").status_code == 200
    APIKey.objects.update(revoked=True)
    assert_is_error(ask(f"Bearer {key}"), 401, "invalid_api_key")


def test_an_expired_key_is_a_401(head: FakeHead, key: str) -> None:
    APIKey.objects.update(expiry_date=timezone.now() + timedelta(hours=1))
    assert ask(f"Bearer {key}").status_code == 200
    APIKey.objects.update(expiry_date=timezone.now() - timedelta(seconds=1))
    assert_is_error(ask(f"Bearer {key}"), 401, "invalid_api_key")


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Bearer  "])
def test_the_scheme_may_be_written_in_any_case(head: FakeHead, key: str, scheme: str) -> None:
    assert ask(f"{scheme} {key}").status_code == 200


def test_e02_the_mesh_secret_does_not_open_the_api(head: FakeHead, settings: Any) -> None:
    settings.MESHNET_SECRET = "a-secret-of-the-mesh"
    assert_is_error(ask("Bearer a-secret-of-the-mesh"), 401, "invalid_api_key")


def test_a_key_is_checked_with_one_read_and_once_a_minute_one_write(head: FakeHead, key: str) -> None:
    start = timezone.now()
    for seconds, words in ((0, ["SELECT"]), (59, ["SELECT"]), (61, ["SELECT", "UPDATE"]), (120, ["SELECT"])):
        with (
            time_machine.travel(start + timedelta(seconds=seconds), tick=False),
            CaptureQueriesContext(connection) as queries,
        ):
            assert ask(f"Bearer {key}").status_code == 200
        assert [query["sql"].split()[0] for query in queries] == words
    assert APIKey.objects.get().last_used_at == start + timedelta(seconds=61)


def test_a_wrong_key_is_not_used(head: FakeHead, key: str) -> None:
    APIKey.objects.update(last_used_at=None)
    ask(f"Bearer {key}x")
    assert APIKey.objects.get().last_used_at is None


def test_f05_a_use_that_cannot_be_written_refuses_nobody(
    head: FakeHead, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    APIKey.objects.update(last_used_at=None)
    monkeypatch.setattr(QuerySet, "update", Mock(side_effect=DatabaseError("locked")))
    assert ask(f"Bearer {key}").status_code == 200


@pytest.mark.parametrize("authorization", [None, "Bearer sk-none", "Basic dTpw"])
def test_without_authentication_no_key_is_asked_for_nor_looked_at(
    head: FakeHead, settings: Any, authorization: str | None
) -> None:
    settings.MESHNET_API_AUTH = "off"
    headers = {"Host": "localhost"} if authorization is None else {"Host": "localhost", "Authorization": authorization}
    with CaptureQueriesContext(connection) as queries:
        response = Client().post(
            "/v1/chat/completions", data=json.dumps(CHAT), content_type="application/json", headers=headers
        )
    assert response.status_code == 200
    assert (len(queries), head.asked[0]["api_key"]) == (0, None)


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/toy/llama"])
def test_the_list_of_models_needs_a_key_too(head: FakeHead, path: str) -> None:
    assert_is_error(Client().get(path), 401, "invalid_api_key")
