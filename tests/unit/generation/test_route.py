from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from generation.errors import NoRoute
from generation.route import RouteNode, plan
from nodes.layers import LayerRange


def node(
    url: str,
    start: int,
    end: int,
    *,
    fingerprint: str = "m",
    dtype: str = "float32",
    context: int = 512,
    can_be_cut: bool = True,
) -> RouteNode:
    return RouteNode(url, fingerprint, dtype, LayerRange(start, end), 8, context, can_be_cut)


def hops(nodes: list[RouteNode], **options: Any) -> list[tuple[str, str]]:
    options = {"fingerprint": "m", "dtype": "float32", "n_layers": 8, **options}
    return [(hop.url, str(hop.layers)) for hop in plan(nodes, **options).hops]


def test_every_layer_is_run_once_in_order() -> None:
    assert hops([node("b", 4, 8), node("a", 0, 4)]) == [("a", "0:4"), ("b", "4:8")]


def test_overlaps_are_cut() -> None:
    assert hops([node("a", 0, 5), node("b", 3, 8)]) == [("a", "0:5"), ("b", "5:8")]


def test_the_fewest_hops_win() -> None:
    nodes = [node("a", 0, 2), node("b", 2, 4), node("c", 4, 8), node("d", 0, 4)]
    assert hops(nodes) == [("d", "0:4"), ("c", "4:8")]


def test_a_gap_is_named() -> None:
    with pytest.raises(NoRoute, match="layers 2:5 of 8"):
        hops([node("a", 0, 2), node("b", 5, 8)])
    with pytest.raises(NoRoute, match="layers 0:8"):
        hops([])


def test_nodes_of_another_model_or_dtype_are_left_out_and_counted() -> None:
    with pytest.raises(NoRoute, match="2 nodes were left out"):
        hops([node("a", 0, 4), node("b", 4, 8, fingerprint="x"), node("c", 4, 8, dtype="bfloat16")])


def test_a_node_that_takes_shorter_texts_is_left_out() -> None:
    nodes = [node("a", 0, 8, context=64), node("b", 0, 8)]
    assert hops(nodes, context_length=512) == [("b", "0:8")]
    assert hops(nodes, context_length=64) == [("a", "0:8")]


def test_a_suspect_is_used_only_when_nothing_else_covers() -> None:
    nodes = [node("a", 0, 8), node("b", 0, 4), node("c", 4, 8)]
    assert hops(nodes, avoid={"a"}) == [("b", "0:4"), ("c", "4:8")]
    assert hops(nodes, avoid={"a", "c"}) == [("a", "0:8")], "one suspect either way: the shorter route"
    assert hops([node("a", 0, 8)], avoid={"a"}) == [("a", "0:8")]


def test_replicas_are_chosen_among_by_the_given_rule() -> None:
    nodes = [node("a", 0, 8), node("b", 0, 8)]
    assert hops(nodes, prefer=lambda equal: equal[-1]) == [("b", "0:8")]


def test_a_node_that_always_runs_all_its_layers_is_never_cut() -> None:
    old = node("old", 0, 5, can_be_cut=False)
    assert hops([old, node("b", 3, 8)]) == [("old", "0:5"), ("b", "5:8")]
    late = node("late", 3, 8, can_be_cut=False)
    assert hops([node("a", 0, 5), late]) == [("a", "0:3"), ("late", "3:8")]
    with pytest.raises(NoRoute, match="overlap"):
        hops([old, late])


def test_a_status_without_the_new_fields_is_of_a_node_that_cannot_be_cut() -> None:
    status = {
        "state": "ready",
        "fingerprint": "m",
        "dtype": "float32",
        "start_layer": 0,
        "end_layer": 4,
        "n_layers": 8,
        "context_length": 64,
    }
    old = RouteNode.from_status("a", status)
    new = RouteNode.from_status("a", {**status, "supports_kv_cache": False})
    assert old is not None and not old.can_be_cut
    assert new is not None and new.can_be_cut


@given(
    st.lists(
        st.tuples(st.integers(0, 7), st.integers(1, 8)).filter(lambda pair: pair[0] < pair[1]),
        min_size=1,
        max_size=12,
    ),
    st.data(),
)
def test_a_plan_has_no_gap_and_no_overlap_and_is_the_shortest(
    spans: list[tuple[int, int]], data: st.DataObject
) -> None:
    nodes = [node(f"n{index}", start, end) for index, (start, end) in enumerate(spans)]
    covered = all(any(layer in one.layers for one in nodes) for layer in range(8))
    if not covered:
        with pytest.raises(NoRoute):
            hops(nodes)
        return
    route = plan(nodes, fingerprint="m", dtype="float32", n_layers=8).hops
    assert [layer for hop in route for layer in range(hop.layers.start, hop.layers.end)] == list(range(8))
    by_url = {one.url: one for one in nodes}
    assert all(by_url[hop.url].layers.holds(hop.layers) for hop in route)
    assert len(route) == shortest(nodes)


def shortest(nodes: list[RouteNode]) -> int:
    """Brute force: breadth first over reached layers."""
    reached, steps = {0}, 0
    while 8 not in reached:
        reached |= {
            end for one in nodes for at in reached if at in one.layers for end in range(at + 1, one.layers.end + 1)
        }
        steps += 1
    return steps


@pytest.mark.parametrize("status", [{}, {"state": "draining"}, {"state": "ready", "start_layer": "x"}])
def test_a_status_that_says_no_is_no_node(status: dict[str, Any]) -> None:
    assert RouteNode.from_status("a", status) is None
