from __future__ import annotations

import itertools
from typing import Any

import pytest

from nodes.coverage import Serves
from nodes.layer_bar import Holder, layer_bars
from nodes.live import NodeSnapshot

SERVES = Serves("sha256:toy", "float32", 30)


def holder(url: str, start: int, end: int, state: str = "ready", serves: Serves = SERVES) -> Holder:
    return Holder(url, serves, "toy", start, end, state)


def snapshot(one: Holder) -> NodeSnapshot:
    status: dict[str, Any] = {
        "fingerprint": one.serves.fingerprint,
        "dtype": one.serves.dtype,
        "n_layers": one.serves.n_layers,
        "start_layer": one.start,
        "end_layer": one.end,
        "model": one.model,
    }
    heard = one.state != "unreachable"
    return NodeSnapshot(one.url, status if heard else None, None, None, one.state)  # type: ignore[arg-type]


def bars(*holders: Holder) -> Any:
    return layer_bars(holders, [snapshot(one) for one in holders])


def test_nodes_after_each_other_share_a_lane_and_replicas_take_another() -> None:
    (bar,) = bars(holder("http://a", 0, 15), holder("http://b", 15, 30), holder("http://c", 0, 15))
    assert [(span.name, span.y) for span in bar.spans] == [("a", 0), ("b", 0), ("c", 28)]
    assert [(span.x, span.width) for span in bar.spans[:2]] == [("0.000%", "50.000%"), ("50.000%", "50.000%")]
    assert (bar.gaps, bar.says) == ([], "All 30 layers are covered.")


def test_a_gap_is_what_no_ready_node_holds() -> None:
    (bar,) = bars(holder("http://a", 0, 10), holder("http://b", 10, 20, "draining"), holder("http://c", 20, 30))
    assert [(gap.start, gap.end, gap.label) for gap in bar.gaps] == [(10, 20, "no node: 10:20")]
    assert bar.says == "No ready node holds layers 10:20."
    assert "(draining)" in bar.spans[1].label


def test_with_all_nodes_silent_everything_is_a_gap() -> None:
    (bar,) = bars(holder("http://a", 0, 30, "unreachable"))
    assert [(gap.start, gap.end) for gap in bar.gaps] == [(0, 30)]


def test_each_model_and_dtype_has_a_bar_of_its_own_the_largest_first() -> None:
    other = Serves("sha256:other", "float32", 12)
    found = bars(holder("http://a", 0, 12, serves=other), holder("http://b", 0, 15), holder("http://c", 15, 30))
    assert [(bar.n_layers, len(bar.spans)) for bar in found] == [(30, 2), (12, 1)]


@pytest.mark.parametrize(("replicas", "height", "labelled"), [(4, 26, True), (12, 18, True), (13, 8, False)])
def test_many_lanes_are_thin_and_carry_no_text(replicas: int, height: int, labelled: bool) -> None:
    (bar,) = bars(*(holder(f"http://{number}", 0, 30) for number in range(replicas)))
    assert (bar.lane_height, bool(bar.spans[0].label)) == (height, labelled)


def test_numbers_under_the_bar_do_not_run_into_each_other() -> None:
    serves = Serves("sha256:toy", "float32", 100)
    (bar,) = bars(*(holder(f"http://{cut}", cut, cut + 1, serves=serves) for cut in range(100)))
    layers = [layer for _, layer in bar.ticks]
    assert (layers[0], layers[-1]) == (0, 100)
    assert min(b - a for a, b in itertools.pairwise(layers)) >= 3
