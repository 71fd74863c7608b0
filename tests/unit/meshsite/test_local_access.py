from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from django.contrib.auth import authenticate, get_user_model
from django.db import OperationalError
from django.db import connection as default
from django.db.backends.sqlite3.base import DatabaseWrapper
from django.http import HttpRequest
from django.utils import timezone

from generation.models import APIKey
from meshsite.local_access import ADMIN_USER, BRIEFLY_MS, NotLoopback, forget_nodes, make_admin, prepare, wait_briefly
from nodes.models import Node

pytestmark = pytest.mark.django_db

HEAD = "http://127.0.0.1:8000"


def test_the_key_of_this_start_works_and_that_of_the_last_does_not() -> None:
    first = prepare([HEAD], [], "first password")
    second = prepare([HEAD], [], "second password")
    assert APIKey.objects.usable(first) is None
    assert APIKey.objects.usable(second) is not None


def test_keys_that_somebody_made_stay() -> None:
    _, key = APIKey.objects.create_key(name="my app")
    prepare([HEAD], [], "password")
    assert APIKey.objects.usable(key) is not None


def test_the_admin_user_gets_a_new_password_and_may_do_everything() -> None:
    prepare([HEAD], [], "first password")
    prepare([HEAD], [], "second password")
    assert authenticate(HttpRequest(), username=ADMIN_USER, password="first password") is None
    user = authenticate(HttpRequest(), username=ADMIN_USER, password="second password")
    assert user is not None
    assert user.is_superuser  # type: ignore[union-attr]
    assert get_user_model().objects.count() == 1


def test_other_users_are_left_alone() -> None:
    get_user_model().objects.create_user("admin", password="of their own")
    prepare([HEAD], [], "password")
    assert authenticate(HttpRequest(), username="admin", password="of their own") is not None


def test_nodes_of_other_meshes_are_forgotten() -> None:
    for url in ("http://127.0.0.1:8001", "http://elsewhere:8001"):
        Node.objects.create(url=url)
    prepare([HEAD], ["http://127.0.0.1:8001", "http://127.0.0.1:8002"], "password")
    assert [node.url for node in Node.objects.all()] == ["http://127.0.0.1:8001"]


def test_what_nodes_of_the_last_start_announced_is_forgotten_and_what_an_operator_decided_is_not() -> None:
    url = "http://127.0.0.1:8001"
    Node.objects.create(url=url, announced_at=timezone.now(), state="ready", is_removed=True)
    prepare([HEAD], [url], "password")
    row = Node.objects.get()
    assert (row.announced_at, row.state, row.is_removed) == (None, "", True)


def test_rows_of_nodes_that_are_gone_for_good_are_deleted() -> None:
    for port in (1, 2):
        Node.objects.create(url=f"http://127.0.0.1:{port}")
    forget_nodes(["http://127.0.0.1:2", "http://127.0.0.1:3"])
    assert [row.url for row in Node.objects.all()] == ["http://127.0.0.1:1"]


def test_without_a_password_there_is_no_admin_user() -> None:
    prepare(["http://10.0.0.1:8000"], [], None)
    assert not get_user_model().objects.exists()


@pytest.mark.parametrize("head", ["http://0.0.0.0:8000", "http://192.168.1.7:8000", "http://mesh.example:8000", "x"])
def test_no_admin_user_is_made_for_a_head_that_others_reach(head: str) -> None:
    with pytest.raises(NotLoopback, match="not a loopback address"):
        prepare([HEAD, head], [], "password")
    assert not get_user_model().objects.exists()
    assert not APIKey.objects.exists()


@pytest.mark.parametrize("head", ["http://127.0.0.1:1", "http://127.9.9.9:1", "http://[::1]:1", "http://localhost:1"])
def test_every_name_of_loopback_will_do(head: str) -> None:
    make_admin([head], "password")
    assert get_user_model().objects.get().username == ADMIN_USER


def test_a_lock_that_somebody_holds_is_waited_for_briefly(tmp_path: Path) -> None:
    path = tmp_path / "some.sqlite3"
    options = {"timeout": 20, "transaction_mode": "IMMEDIATE"}
    with closing(DatabaseWrapper({**default.settings_dict, "NAME": path, "OPTIONS": options}, "other")) as connection:
        wait_briefly(connection)
        with connection.cursor() as cursor:
            assert cursor.execute("PRAGMA busy_timeout").fetchone() == (BRIEFLY_MS,)
            with closing(sqlite3.connect(path)) as other:
                other.execute("BEGIN EXCLUSIVE")
                with pytest.raises(OperationalError, match="locked"):
                    cursor.execute("CREATE TABLE some (one)")
