from __future__ import annotations

import hmac
from typing import Any

import pytest
from django.test import RequestFactory

from nodes import mesh_auth
from nodes.errors import Unauthorized

SECRET, ALSO = "the-secret-of-the-mesh", "the-secret-that-is-accepted-too"


def lets_in(authorization: str | None) -> bool:
    headers = {} if authorization is None else {"Authorization": authorization}
    try:
        mesh_auth.authorize(RequestFactory().get("/status", headers=headers))
    except Unauthorized:
        return False
    return True


@pytest.fixture(autouse=True)
def two_secrets(settings: Any) -> None:
    settings.MESHNET_SECRET, settings.MESHNET_SECRET_ALSO = SECRET, ALSO


def test_either_secret_is_let_in() -> None:
    assert lets_in(f"Bearer {SECRET}")
    assert lets_in(f"bearer {ALSO}")


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        SECRET,
        f"Basic {SECRET}",
        f"Bearer {SECRET[:-1]}",
        f"Bearer {SECRET}x",
        f"Bearer {SECRET}, Bearer {SECRET}",
        f"Bearer {SECRET}{ALSO}",
        "Bearer \udcff",
        "Bearer sécret",
    ],
)
def test_anything_else_is_not(authorization: str | None) -> None:
    assert not lets_in(authorization)


@pytest.mark.parametrize(("secret", "also"), [("", ""), ("", ALSO), (SECRET, "")])
def test_an_empty_secret_lets_nobody_in(settings: Any, secret: str, also: str) -> None:
    settings.MESHNET_SECRET, settings.MESHNET_SECRET_ALSO = secret, also
    assert not lets_in("Bearer ")
    assert lets_in(f"Bearer {SECRET}") is bool(secret)
    assert lets_in(f"Bearer {ALSO}") is bool(also)


@pytest.mark.parametrize("given", [SECRET, ALSO, "something else"])
def test_e02_both_are_compared_in_constant_time_whatever_is_given(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    compared: list[bytes] = []

    def compare(given: bytes, secret: bytes) -> bool:
        compared.append(secret)
        return hmac_compare(given, secret)

    hmac_compare = hmac.compare_digest
    monkeypatch.setattr(mesh_auth.hmac, "compare_digest", compare)
    lets_in(f"Bearer {given}")
    assert compared == [SECRET.encode(), ALSO.encode()]
