"""A node's memory grows with its shard, not with the model."""

from __future__ import annotations

import json
from pathlib import Path

from nodes.layers import LayerRange
from nodes.shard import ModelShard
from tests import processes
from tests.real import real_model, real_model_only

pytestmark = real_model_only


def resident(folder: Path, model: Path, layers: str) -> int:
    """Bytes in RAM of a fresh node process with these layers."""
    node = processes.node(folder, model, layers)
    with processes.serving(node):
        status = json.loads(processes.call(f"{node.url}/status", headers=processes.secret_header())[2])
    assert status["layers"] == layers
    return int(status["rss_bytes"])


def test_a_node_takes_memory_for_its_own_layers_only(tmp_path: Path) -> None:
    model = real_model().folder
    few, many = LayerRange(0, 5), LayerRange(0, 25)
    one_layer = sum(p.numel() * p.element_size() for p in ModelShard.load(model, LayerRange(0, 1))._model.parameters())
    grown = resident(tmp_path / "many", model, str(many)) - resident(tmp_path / "few", model, str(few))
    expected = one_layer * (many.size - few.size)
    assert 0.75 * expected < grown < 1.25 * expected, (grown, expected)
