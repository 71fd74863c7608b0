"""What a plan by capacity makes of a replica's nodes."""

from __future__ import annotations

from meshsite.engine import NodeSpec
from meshsite.planned_nodes import as_planned
from meshsite.planned_split import PlannedStage
from nodes.layers import LayerRange

STAGES = [
    PlannedStage(LayerRange(0, 3), "a", 1000, 2.5, 0.0, cache_bytes=400),
    PlannedStage(LayerRange(3, 4), "b", 3000, 8.0, 1.0, cache_bytes=900),
]


def spec(stage: int) -> NodeSpec:
    return NodeSpec(f"node{stage}", 1, stage, STAGES[stage - 1].layers, {"MESHNET_THREADS": "1", "MESHNET_MODEL": "m"})


def test_each_node_asks_for_what_its_stage_takes() -> None:
    first, second = as_planned([spec(1), spec(2)], STAGES, {})
    assert (first.memory_bytes, first.cpus, first.gpus) == (1000, 2.5, 0.0)
    assert (second.memory_bytes, second.cpus, second.gpus) == (3000, 8.0, 1.0)


def test_each_node_is_told_how_much_it_may_use() -> None:
    first, second = as_planned([spec(1), spec(2)], STAGES, {})
    assert first.settings == {"MESHNET_MODEL": "m", "MESHNET_THREADS": "2", "MESHNET_KV_MAX_BYTES": "400"}
    assert second.settings["MESHNET_DEVICE"] == "cuda"


def test_what_the_user_has_set_stays() -> None:
    (only,) = as_planned([spec(1)], STAGES, {"MESHNET_KV_MAX_BYTES": "7", "MESHNET_THREADS": "1"})
    assert only.settings == {"MESHNET_MODEL": "m", "MESHNET_THREADS": "1"}
