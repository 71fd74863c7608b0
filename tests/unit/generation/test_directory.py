from __future__ import annotations

import threading
from typing import Any

import pytest

from generation.directory import FRESH_SECONDS, SUSPECT_SECONDS, NodeDirectory
from generation.errors import NoRoute
from tests.conftest import Clock

STATUS = {
    "state": "ready",
    "fingerprint": "m",
    "dtype": "float32",
    "start_layer": 0,
    "end_layer": 2,
    "n_layers": 2,
    "context_length": 64,
}


class FakeClient:
    """Says a status and counts how often it was asked."""

    def __init__(self, url: str = "http://a", **status: Any) -> None:
        self.url = url
        self.answer = {**STATUS, **status}
        self.asked = 0
        self.hold: threading.Event | None = None

    def status(self, *, timeout: float) -> dict[str, Any]:
        self.asked += 1
        if self.hold is not None:
            assert self.hold.wait(10)
        return self.answer

    def sessions(self, *, timeout: float) -> dict[str, Any]:
        raise AssertionError("no plan needs the sessions")


def directory(*clients: FakeClient, clock: Clock) -> NodeDirectory:
    return NodeDirectory(list(clients), clock=clock)  # type: ignore[arg-type]


def test_only_nodes_that_take_sessions_are_ready(clock: Clock) -> None:
    found = directory(FakeClient("http://a"), FakeClient("http://b", state="draining"), clock=clock).ready()
    assert [node.url for node in found] == ["http://a"]


def test_news_are_shared_until_they_are_old(clock: Clock) -> None:
    client = FakeClient()
    nodes = directory(client, clock=clock)
    nodes.ready()
    clock.advance(FRESH_SECONDS * 0.9)
    nodes.ready()
    assert client.asked == 1
    clock.advance(FRESH_SECONDS)
    nodes.ready()
    assert client.asked == 2


def test_fresh_asks_again(clock: Clock) -> None:
    client = FakeClient()
    nodes = directory(client, clock=clock)
    nodes.ready()
    clock.advance(0.1)
    nodes.ready(fresh=True)
    assert client.asked == 2


def test_many_who_ask_at_once_share_one_fetch(clock: Clock) -> None:
    client = FakeClient()
    client.hold = threading.Event()
    nodes = directory(client, clock=clock)
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(len(nodes.ready()))) for _ in range(8)]
    for thread in threads:
        thread.start()
    client.hold.set()
    for thread in threads:
        thread.join()
    assert found == [1] * 8
    assert client.asked == 1


def test_a_suspect_is_forgiven_after_a_while(clock: Clock) -> None:
    nodes = directory(FakeClient(), clock=clock)
    nodes.suspect("http://a")
    assert nodes.suspects() == {"http://a"}
    clock.advance(SUSPECT_SECONDS)
    assert nodes.suspects() == set()


def test_a_removed_node_is_in_no_plan_until_it_is_brought_back(clock: Clock) -> None:
    nodes = directory(FakeClient("http://a"), FakeClient("http://b"), clock=clock)
    nodes.set_removed({"http://a", "http://of-another-mesh"})
    assert [node.url for node in nodes.ready()] == ["http://b"]
    nodes.set_removed(set())
    assert [node.url for node in nodes.ready()] == ["http://a", "http://b"]


def test_a_stranger_is_no_route(clock: Clock) -> None:
    with pytest.raises(NoRoute, match="http://x"):
        directory(FakeClient(), clock=clock).client("http://x")
