from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from generation.errors import NoRoute
from generation.route import Hop, RouteNode, plan
from nodes.layers import LayerRange

N_LAYERS = 8


def node(url: str, start: int, end: int, **known: Any) -> RouteNode:
    known = {"fingerprint": "m", "dtype": "float32", "context_length": 512, **known}
    return RouteNode(url, layers=LayerRange(start, end), n_layers=N_LAYERS, **known)


def hops(nodes: list[RouteNode], **options: Any) -> list[tuple[str, str]]:
    options = {"fingerprint": "m", "dtype": "float32", "n_layers": N_LAYERS, **options}
    return [(hop.url, str(hop.layers)) for hop in plan(nodes, **options).hops]


def test_every_layer_is_run_once_in_order() -> None:
    assert hops([node("b", 4, 8), node("a", 0, 4)]) == [("a", "0:4"), ("b", "4:8")]


def test_overlaps_are_cut() -> None:
    assert hops([node("a", 0, 5), node("b", 3, 8)]) == [("a", "0:5"), ("b", "5:8")]


def test_an_overlap_goes_to_the_faster_node() -> None:
    assert hops([node("a", 0, 5, layer_ms=3.0), node("b", 3, 8)]) == [("a", "0:3"), ("b", "3:8")]


def test_among_equals_the_fewest_hops_win() -> None:
    nodes = [node("a", 0, 2), node("b", 2, 4), node("c", 4, 8), node("d", 0, 4)]
    assert hops(nodes) == [("d", "0:4"), ("c", "4:8")]


def test_two_fast_nodes_win_over_one_slow_one() -> None:
    slow, fast = node("slow", 0, 8, layer_ms=2.0), [node("a", 0, 4), node("b", 4, 8)]
    assert hops([slow, *fast]) == [("a", "0:4"), ("b", "4:8")]
    far = [replace(one, hop_ms=20.0) for one in fast]
    assert hops([slow, *far]) == [("slow", "0:8")], "unless each trip to them costs more than they save"


def test_a_generation_goes_to_the_replica_that_is_less_loaded() -> None:
    assert hops([node("a", 0, 8, load=2), node("b", 0, 8, load=1)]) == [("b", "0:8")]


def test_a_full_node_is_used_only_when_nothing_else_covers() -> None:
    full, slow = node("full", 0, 8, is_full=True), node("slow", 0, 8, layer_ms=50.0)
    assert hops([full, slow]) == [("slow", "0:8")]
    route = plan([full], fingerprint="m", dtype="float32", n_layers=N_LAYERS)
    assert route.has_full_node
    assert not plan([slow], fingerprint="m", dtype="float32", n_layers=N_LAYERS).has_full_node


def test_a_gap_is_named() -> None:
    with pytest.raises(NoRoute, match="layers 2:5 of 8"):
        hops([node("a", 0, 2), node("b", 5, 8)])
    with pytest.raises(NoRoute, match="layers 0:8"):
        hops([])


def test_nodes_of_another_model_or_dtype_are_left_out_and_counted() -> None:
    with pytest.raises(NoRoute, match="2 nodes were left out"):
        hops([node("a", 0, 4), node("b", 4, 8, fingerprint="x"), node("c", 4, 8, dtype="bfloat16")])


def test_a_node_that_takes_shorter_texts_is_left_out() -> None:
    nodes = [node("a", 0, 8, context_length=64), node("b", 0, 8)]
    assert hops(nodes, context_length=512) == [("b", "0:8")]
    assert hops(nodes, context_length=64) == [("a", "0:8")]


def test_a_node_with_faults_is_used_only_when_nothing_else_covers() -> None:
    nodes = [node("a", 0, 8, faults=1), node("b", 0, 4, is_full=True), node("c", 4, 8)]
    assert hops(nodes) == [("b", "0:4"), ("c", "4:8")]
    assert hops([nodes[0]]) == [("a", "0:8")]


def test_when_all_have_faults_the_least_bad_are_used() -> None:
    nodes = [node("a", 0, 8, faults=3), node("b", 0, 8, faults=1, layer_ms=90.0), node("c", 0, 8, faults=2)]
    assert hops(nodes) == [("b", "0:8")]


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
    old = RouteNode.from_status("a", STATUS)
    new = RouteNode.from_status("a", {**STATUS, "supports_kv_cache": False}, load=3)
    assert old is not None and not old.can_be_cut
    assert new is not None and new.can_be_cut and new.load == 3


SPANS = st.tuples(st.integers(0, N_LAYERS - 1), st.integers(1, N_LAYERS)).filter(lambda pair: pair[0] < pair[1])
NODES = st.lists(
    st.builds(
        lambda span, **known: node("", *span, **known),
        span=SPANS,
        hop_ms=st.floats(0, 50),
        layer_ms=st.floats(0.01, 20),
        load=st.integers(0, 3),
        is_full=st.booleans(),
        faults=st.integers(0, 3),
        can_be_cut=st.booleans(),
    ),
    min_size=1,
    max_size=8,
).map(lambda nodes: [replace(one, url=f"n{index}") for index, one in enumerate(nodes)])


@given(NODES)
def test_a_plan_has_no_gap_and_no_overlap_and_is_as_cheap_as_the_cheapest_of_all(nodes: list[RouteNode]) -> None:
    expected = cheapest_of_all(tuple(nodes))
    if expected == float("inf"):
        with pytest.raises(NoRoute):
            hops(nodes)
        return
    route = plan(nodes, fingerprint="m", dtype="float32", n_layers=N_LAYERS).hops
    assert [layer for hop in route for layer in range(hop.layers.start, hop.layers.end)] == list(range(N_LAYERS))
    by_url = {one.url: one for one in nodes}
    assert all(by_url[hop.url].can_run(hop.layers.start, hop.layers.end) for hop in route)
    assert cost(route, by_url) == pytest.approx(expected, abs=1e-5)


def cost(route: tuple[Hop, ...], by_url: dict[str, RouteNode]) -> float:
    return sum(by_url[hop.url].cost_ms(hop.layers.size) for hop in route)


def cheapest_of_all(nodes: tuple[RouteNode, ...]) -> float:
    """Brute force: every node for every stretch from every layer on, cuts anywhere."""

    @cache
    def cheapest(start: int) -> float:
        if start == N_LAYERS:
            return 0.0
        return min(
            (
                one.cost_ms(end - start) + cheapest(end)
                for one in nodes
                for end in range(start + 1, N_LAYERS + 1)
                if one.can_run(start, end)
            ),
            default=float("inf"),
        )

    return cheapest(0)


STATUS = {
    "state": "ready",
    "fingerprint": "m",
    "dtype": "float32",
    "start_layer": 0,
    "end_layer": 4,
    "n_layers": 8,
    "context_length": 64,
}


@pytest.mark.parametrize(
    "said",
    [
        {"state": "draining"},
        {"start_layer": "x"},
        {"start_layer": -1},
        {"start_layer": 4},
        {"end_layer": float("inf")},
        {"end_layer": 1 << 70},
        {"context_length": float("nan")},
    ],
)
def test_a_status_that_says_no_is_no_node(said: dict[str, Any]) -> None:
    assert RouteNode.from_status("a", STATUS | said) is None
    assert RouteNode.from_status("a", said) is None


@pytest.mark.parametrize("can_be_cut", [True, False])
def test_a_node_beyond_the_last_layer_is_left_out(can_be_cut: bool) -> None:
    beyond = node("beyond", N_LAYERS, N_LAYERS + 4, can_be_cut=can_be_cut)
    assert hops([beyond, node("a", 0, 8)]) == [("a", "0:8")]
    with pytest.raises(NoRoute, match="4:8"):
        hops([beyond, node("a", 0, 4)])
