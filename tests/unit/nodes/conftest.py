from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nodes import live
from nodes.client import HttpNodeClient
from tests.unit.nodes.fake_node import SECRET, FakeNode, dead_url

MakeNode = Callable[..., FakeNode]


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
        if thread.name.startswith(live.THREAD_NAME):
            thread.join(10)


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
