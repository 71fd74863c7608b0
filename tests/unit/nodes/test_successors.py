from __future__ import annotations

from typing import Any

import pytest
import torch

from nodes.errors import (
    BadRequest,
    ComputeFailed,
    HandoverFailed,
    KVCacheMiss,
    MeshnetError,
    NodeProtocolError,
    NodeTimeout,
    NodeUnreachable,
    OutsideNetworks,
    Unauthorized,
)
from nodes.framing import Payload
from nodes.handover import NextHop
from nodes.layers import LayerRange
from nodes.successors import MOST_CLIENTS, Successors
from nodes.wire import StepHeaders

STEP = Payload(torch.zeros(1, 1, 4))
URL = "http://two"


class FakeNode:
    def __init__(self, url: str, error: MeshnetError | None = None) -> None:
        self.url = url
        self.error = error
        self.calls: list[dict[str, Any]] = []
        self.tidied = 0

    def forward(self, headers: StepHeaders, payload: Payload, **limits: Any) -> None:
        self.calls.append(limits)
        if self.error is not None:
            raise self.error

    def tidy(self) -> None:
        self.tidied += 1


def hop(url: str = URL) -> NextHop:
    return NextHop(url, "boot", LayerRange(2, 4), 60.0, 2.5)


def met(error: MeshnetError) -> MeshnetError:
    node = FakeNode(URL, error)
    with pytest.raises(MeshnetError) as raised:
        Successors(lambda url: node).pass_on(hop(), StepHeaders(), STEP)  # type: ignore[arg-type,return-value]
    return raised.value


def test_one_client_for_each_node_called_with_the_patience_of_the_way() -> None:
    made: list[FakeNode] = []

    def connect(url: str) -> Any:
        made.append(FakeNode(url))
        return made[-1]

    successors = Successors(connect)
    for url in (URL, "http://three", URL):
        successors.pass_on(hop(url), StepHeaders(), STEP)
    assert [node.url for node in made] == [URL, "http://three"]
    assert made[0].calls == [{"timeout": 60.0, "patience": 2.5}] * 2
    successors.tidy()
    assert [node.tidied for node in made] == [1, 1]


def test_connections_are_kept_to_so_many_nodes_only_those_used_last() -> None:
    made: list[str] = []

    def connect(url: str) -> Any:
        made.append(url)
        return FakeNode(url)

    successors = Successors(connect)
    urls = [f"http://node{number}" for number in range(MOST_CLIENTS)]
    for url in [*urls, urls[0], "http://another", urls[0]]:
        successors.pass_on(hop(url), StepHeaders(), STEP)
    assert made == [*urls, "http://another"]
    successors.pass_on(hop(urls[1]), StepHeaders(), STEP)
    assert made[-1] == urls[1], "the longest unused had gone"


@pytest.mark.parametrize("error", [KVCacheMiss(reason="unknown_session"), ComputeFailed(), NodeTimeout()])
def test_what_the_next_node_says_of_itself_is_said_with_its_name(error: MeshnetError) -> None:
    found = met(error)
    assert type(found) is type(error)
    assert found.extra["node"] == URL


@pytest.mark.parametrize(
    "error",
    [NodeUnreachable(), NodeProtocolError(), Unauthorized(), BadRequest(), OutsideNetworks(), HandoverFailed("full")],
)
def test_two_nodes_that_do_not_reach_or_understand_each_other_are_no_fault_of_either(error: MeshnetError) -> None:
    found = met(error)
    assert isinstance(found, HandoverFailed)
    assert found.as_json()["to"] == URL


def test_what_happened_farther_away_keeps_its_name() -> None:
    found = met(ComputeFailed(f"{URL}: http://three: It failed.", node="http://three"))
    assert (found.extra["node"], found.detail) == ("http://three", "http://three: It failed.")
    found = met(HandoverFailed("No hand-over to http://three", to="http://three"))
    assert found.extra["to"] == "http://three"


def test_a_url_that_may_not_be_called_is_not_called() -> None:
    def connect(url: str) -> Any:
        raise OutsideNetworks("10.1.1.1 is outside the networks of nodes.")

    with pytest.raises(HandoverFailed, match="outside"):
        Successors(connect).pass_on(hop("http://10.1.1.1"), StepHeaders(), STEP)
