from __future__ import annotations

from typing import Any

import pytest

from nodes.coverage import Serves, cover
from nodes.live import NodeSnapshot, State

TOY = Serves("sha256:toy", "float32", 30)


def node(url: str, layers: str = "0:30", *, state: State = "ready", **status: Any) -> NodeSnapshot:
    start, end = map(int, layers.split(":"))
    said = {
        "model": "toy", "fingerprint": "sha256:toy", "dtype": "float32", "n_layers": 30,
        "start_layer": start, "end_layer": end, "context_length": 512, **status,
    }  # fmt: skip
    return NodeSnapshot(url, None if state == "unreachable" else said, None, None, state)


def stretches(*nodes: NodeSnapshot) -> dict[str, tuple[str, ...]]:
    coverage = cover(nodes)
    assert coverage is not None
    return {str(stretch): stretch.urls for stretch in coverage.stretches}


def test_stretches_lie_side_by_side_and_name_all_who_hold_them() -> None:
    assert stretches(node("a", "0:15"), node("b", "10:30")) == {"0:10": ("a",), "10:15": ("a", "b"), "15:30": ("b",)}


def test_what_nobody_holds_is_a_gap() -> None:
    coverage = cover([node("a", "3:10"), node("b", "20:25")])
    assert coverage is not None
    assert [str(gap) for gap in coverage.gaps] == ["0:3", "10:20", "25:30"]
    assert (coverage.layers_online, coverage.layers_online_min) == (12, 0)


def test_the_weakest_layer_decides() -> None:
    coverage = cover([node("a"), node("b"), node("c", "0:15")])
    assert coverage is not None
    assert (coverage.layers_online_min, coverage.layers_online, coverage.gaps) == (2, 30, ())


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (node("b", fingerprint="sha256:other"), "another model"),
        (node("b", n_layers=40), "another model"),
        (node("b", dtype="bfloat16"), "another dtype (bfloat16)"),
        (node("b", context_length=100), "shorter context"),
        (node("b", state="draining"), "draining"),
    ],
)
def test_who_cannot_take_part_is_left_out_with_the_reason(other: NodeSnapshot, reason: str) -> None:
    coverage = cover([node("a", "0:15"), other], serves=TOY, context_length=512)
    assert coverage is not None
    assert coverage.left_out == {"b": reason}
    assert [str(gap) for gap in coverage.gaps] == ["15:30"]


def test_without_a_model_it_is_the_one_that_most_nodes_serve() -> None:
    stranger = node("x", "0:12", fingerprint="sha256:other", n_layers=12, model="other")
    coverage = cover([stranger, node("a", "0:15"), node("b", "15:30")])
    assert coverage is not None
    assert (coverage.model, coverage.serves, coverage.gaps) == ("toy", TOY, ())


def test_a_named_model_that_nobody_serves_is_one_gap() -> None:
    coverage = cover([], serves=TOY)
    assert coverage is not None
    assert [str(gap) for gap in coverage.gaps] == ["0:30"]


@pytest.mark.parametrize(
    "status",
    [
        {"n_layers": None}, {"n_layers": "30"}, {"n_layers": True}, {"n_layers": 10**9}, {"n_layers": 5},
        {"start_layer": -1}, {"start_layer": 30}, {"end_layer": [30]},
    ],
)  # fmt: skip
def test_who_says_nonsense_of_its_layers_counts_for_nothing(status: dict[str, Any]) -> None:
    assert cover([node("a", **status)]) is None


def test_silence_is_no_coverage() -> None:
    assert cover([node("a", state="unreachable")]) is None
    assert cover([]) is None
