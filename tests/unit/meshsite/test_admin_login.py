"""The limit to tries at the admin's login, and whom it counts them for."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.test import Client, RequestFactory
from django.utils import timezone

from meshsite.client_address import client_address

NAME, PASSWORD = "operator", "the-password-of-the-operator"
#: What is documented; the setting is AXES_FAILURE_LIMIT.
TRIES = 10


@pytest.fixture
def operator(transactional_db: None, settings: Any) -> None:
    # What a try costs is not looked at here, and ten of the real ones cost seconds.
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    get_user_model().objects.create_superuser(NAME, password=PASSWORD)


def try_to_log_in(password: str, *, peer: str = "10.0.0.9", name: str = NAME, **headers: str) -> int:
    form = {"username": name, "password": password, "next": "/admin/"}
    return Client(REMOTE_ADDR=peer, headers=headers).post("/admin/login/", form).status_code


def lock_out(**where: Any) -> None:
    answers = [try_to_log_in(f"wrong {index}", **where) for index in range(TRIES)]
    assert answers == [200] * (TRIES - 1) + [429]


@pytest.mark.usefixtures("operator")
def test_after_ten_wrong_passwords_an_address_is_refused_with_the_right_one_too() -> None:
    lock_out()
    assert try_to_log_in(PASSWORD) == 429
    assert try_to_log_in("wrong", name="somebody else") == 429


@pytest.mark.usefixtures("operator")
def test_nobody_can_lock_an_operator_out_from_another_address() -> None:
    lock_out()
    assert try_to_log_in(PASSWORD, peer="10.0.0.10") == 302


@pytest.mark.usefixtures("operator")
def test_an_address_may_try_again_a_quarter_of_an_hour_later() -> None:
    lock_out()
    with time_machine.travel(timezone.now() + timedelta(minutes=14), tick=False):
        assert try_to_log_in(PASSWORD) == 429
    with time_machine.travel(timezone.now() + timedelta(minutes=15, seconds=1), tick=False):
        assert try_to_log_in(PASSWORD) == 302


@pytest.mark.usefixtures("operator")
def test_a_command_lets_an_address_in_again() -> None:
    lock_out()
    call_command("axes_reset_ip", "10.0.0.9", stdout=None)
    assert try_to_log_in(PASSWORD) == 302


@pytest.mark.usefixtures("operator")
def test_a_header_from_a_stranger_changes_nothing() -> None:
    answers = [try_to_log_in("wrong", **{"X-Forwarded-For": f"192.0.2.{index}"}) for index in range(TRIES)]
    assert answers[-1] == 429


@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        ("203.0.113.5", None, "203.0.113.5"),
        ("203.0.113.5", "198.51.100.7", "203.0.113.5"),
        ("127.0.0.1", None, "127.0.0.1"),
        ("127.0.0.1", "198.51.100.7", "198.51.100.7"),
        ("127.0.0.1", "forged, 198.51.100.7", "198.51.100.7"),
        ("127.0.0.1", "198.51.100.7, nonsense", "127.0.0.1"),
        ("::ffff:127.0.0.1", "198.51.100.7", "198.51.100.7"),
        ("10.9.0.3", "198.51.100.7", "198.51.100.7"),
        ("", "198.51.100.7", "198.51.100.7"),
        ("", None, "0.0.0.0"),  # noqa: S104
        ("2001:db8:1:2:3:4:5:6", None, "2001:db8:1:2::"),
        ("127.0.0.1", "2001:db8:1:2:ffff::1", "2001:db8:1:2::"),
    ],
)
def test_the_address_is_the_peers_or_what_a_proxy_wrote_last(
    settings: Any, peer: str, forwarded: str | None, address: str
) -> None:
    settings.FORWARDED_ALLOW_IPS = ["127.0.0.1", "10.9.0.0/16"]
    headers = {} if forwarded is None else {"X-Forwarded-For": forwarded}
    assert client_address(RequestFactory().get("/", headers=headers, REMOTE_ADDR=peer)) == address
