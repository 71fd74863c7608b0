from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth.models import Permission, User
from django.test import Client

from nodes.client import HttpNodeClient
from nodes.side_by_side import THREAD_NAME
from nodes.snapshots import SnapshotCache
from tests.conftest import Clock
from tests.unit.nodes.fake_node import SECRET, FakeNode, dead_url

MakeNode = Callable[..., FakeNode]
SignIn = Callable[..., Client]
Mesh = Callable[..., None]


@pytest.fixture(autouse=True)
def snapshots(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> SnapshotCache:
    """A test's pages remember nothing of another test's nodes, and look again when the clock says so."""
    cache = SnapshotCache(clock=clock)
    monkeypatch.setattr(apps.get_app_config("nodes"), "snapshots", cache)
    return cache


@pytest.fixture(autouse=True)
def nobody_announced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests without a database know the nodes of the settings alone."""
    if request.node.get_closest_marker("django_db") is None:
        monkeypatch.setattr("nodes.registry._announced", list)


@pytest.fixture
def make_node() -> Iterator[MakeNode]:
    """Starts fake nodes; at the end they are closed and every abandoned thread has ended."""
    nodes: list[FakeNode] = []

    def make(*args: Any, **kwargs: Any) -> FakeNode:
        nodes.append(FakeNode(*args, **kwargs))
        return nodes[-1]

    yield make
    for node in nodes:
        node.close()
    for thread in threading.enumerate():
        if thread.name.startswith(THREAD_NAME):
            thread.join(10)


@pytest.fixture
def sign_in() -> SignIn:
    """`sign_in("view_kvsession", …)` is a browser of a staff member with these rights and no others."""

    def sign_in(*rights: str, superuser: bool = False, csrf: bool = False) -> Client:
        user = User.objects.create_user("operator", is_staff=True, is_superuser=superuser)
        user.user_permissions.set(Permission.objects.filter(codename__in=rights))
        client = Client(enforce_csrf_checks=csrf)
        client.force_login(user)
        return client

    return sign_in


@pytest.fixture
def dead() -> Iterator[str]:
    """The URL of a node that is not there."""
    with dead_url() as url:
        yield url


@pytest.fixture
def front(make_node: MakeNode) -> FakeNode:
    return make_node("0:15")


@pytest.fixture
def back(make_node: MakeNode) -> FakeNode:
    return make_node("15:30")


@pytest.fixture
def mesh(settings: Any) -> Callable[..., None]:
    """`mesh(node, "http://…", …)` makes these the nodes that the settings name."""

    def configure(*nodes: FakeNode | str) -> None:
        settings.MESHNET_NODES = [node if isinstance(node, str) else node.url for node in nodes]
        settings.MESHNET_SECRET = SECRET

    return configure


@pytest.fixture
def clients() -> Callable[..., list[HttpNodeClient]]:
    def connect(*nodes: FakeNode | str, secret: str = SECRET) -> list[HttpNodeClient]:
        return [HttpNodeClient(node if isinstance(node, str) else node.url, secret) for node in nodes]

    return connect
