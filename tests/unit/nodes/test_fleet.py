from __future__ import annotations

from typing import Any

import pytest

from nodes.errors import NodeUnreachable, NotFound
from nodes.fleet import NodeFleet


class FakeClient:
    def __init__(self, url: str) -> None:
        self.url = url


def fleet(*fixed: str) -> tuple[NodeFleet, list[str]]:
    """A fleet, and the URLs that it connected to."""
    connected: list[str] = []

    def connect(url: str) -> Any:
        connected.append(url)
        if "outside" in url:
            raise NodeUnreachable()
        return FakeClient(url)

    return NodeFleet([FakeClient(url) for url in fixed], connect), connected  # type: ignore[misc]


def urls(nodes: NodeFleet) -> list[str]:
    return [client.url for client in nodes]


def test_fixed_nodes_stand_first_and_announced_ones_come_and_go() -> None:
    nodes, _ = fleet("http://f")
    nodes.follow(["http://b", "http://a"])
    assert urls(nodes) == ["http://f", "http://a", "http://b"]
    nodes.follow(["http://b"])
    assert urls(nodes) == ["http://f", "http://b"]
    nodes.add("http://c")
    nodes.drop("http://b")
    assert urls(nodes) == ["http://f", "http://c"]
    assert len(nodes) == 2 and nodes[1].url == "http://c"


def test_a_fixed_node_is_one_node_whatever_it_announces() -> None:
    nodes, connected = fleet("http://f")
    nodes.add("http://f")
    nodes.follow(["http://f"])
    nodes.drop("http://f")
    assert urls(nodes) == ["http://f"]
    assert connected == []


def test_a_node_keeps_its_client_and_running_answers_still_find_it_after_it_has_left() -> None:
    nodes, connected = fleet()
    nodes.add("http://a")
    client = nodes.client("http://a")
    nodes.drop("http://a")
    assert nodes.client("http://a") is client
    nodes.follow(["http://a"])
    assert nodes[0] is client
    assert connected == ["http://a"]


def test_a_stranger_is_not_found() -> None:
    with pytest.raises(NotFound, match="http://x"):
        fleet("http://f")[0].client("http://x")


def test_a_node_that_may_not_be_spoken_to_keeps_no_other_one_away() -> None:
    nodes, _ = fleet()
    nodes.follow(["http://a", "http://outside", "http://z"])
    assert urls(nodes) == ["http://a", "http://z"]


def test_iterating_goes_over_the_nodes_of_one_moment() -> None:
    nodes, _ = fleet("http://f")
    nodes.follow(["http://a", "http://b"])
    seen = []
    for client in nodes:
        seen.append(client.url)
        nodes.follow([])
    assert seen == ["http://f", "http://a", "http://b"]


def test_a_beat_of_a_known_node_changes_nothing() -> None:
    nodes, connected = fleet()
    nodes.follow(["http://a", "http://b"])
    members = nodes[:]
    nodes.add("http://a")
    assert nodes[:] is members, "a thousand nodes beat two hundred times a second"
    nodes.drop("http://a")
    nodes.add("http://a")
    assert urls(nodes) == ["http://a", "http://b"]
    assert connected == ["http://a", "http://b"]
