from __future__ import annotations

import json
from typing import Any

import pytest

from nodes.live import NodeSnapshot
from nodes.models import Node
from nodes.overview import overview
from nodes.snapshots import SeenNode

STATUS = {
    "fingerprint": "sha256:toy",
    "dtype": "float32",
    "model": "toy",
    "start_layer": 0,
    "end_layer": 15,
    "n_layers": 30,
    "layers": "0:15",
    "versions": {"meshnet": "0.1.0"},
}


def seen(url: str = "http://a", status: Any = STATUS, **sessions: Any) -> SeenNode:
    state: Any = "ready" if status is not None else "unreachable"
    error = None if status is not None else "silent"
    snapshot = NodeSnapshot(url, status, {"sessions": [], **sessions} if status is not None else None, error, state)
    return SeenNode(snapshot, snapshot, 0.0 if status is not None else None, None)


def test_the_summary_is_one_sentence_on_nodes_and_layers() -> None:
    page = overview([seen(), seen("http://b", None)], [])
    assert page.summary == "1 of 2 nodes ready. No ready node holds layers 15:30."
    assert overview([], []).summary == "0 of 0 nodes ready. No layers are known."


def test_how_full_a_limit_is_shows_in_per_cent() -> None:
    stats, limits = {"sessions": 7, "bytes": 95}, {"max_sessions": 8, "max_bytes": 100}
    (line,) = overview([seen(stats=stats, limits=limits)], []).nodes
    assert (line.sessions.percent, line.sessions.is_high) == ("87.5%", False)
    assert (line.bytes.percent, line.bytes.is_high) == ("95.0%", True)


def test_a_mesh_of_which_only_rows_are_known_is_drawn_from_them() -> None:
    rows = [
        Node(url=f"http://{end}", fingerprint="f", dtype="d", model_name="toy", start_layer=end - 10, end_layer=end)
        for end in (10, 30)
    ]
    page = overview([seen(row.url, None) for row in rows], rows)
    (bar,) = page.bars
    assert (bar.n_layers, [span.state for span in bar.spans]) == (30, ["unreachable", "unreachable"])
    assert [(gap.start, gap.end) for gap in bar.gaps] == [(0, 30)]


@pytest.mark.parametrize(
    "change", [{"start_layer": "0"}, {"n_layers": 10**9}, {"end_layer": 31}, {"versions": None, "work": {"steps": 3}}]
)
def test_an_odd_status_breaks_nothing(change: dict[str, Any]) -> None:
    page = overview([seen(status=STATUS | change, stats={"misses": [1], "hits": None}, limits={"max_bytes": "x"})], [])
    assert page.nodes[0].misses == "-"
    json.dumps(page.as_json())


def test_a_removed_node_that_is_silent_says_both() -> None:
    row = Node(url="http://a", is_removed=True)
    (line,) = overview([seen(status=None)], [row]).nodes
    assert (line.state, line.note) == ("removed", "unreachable")
