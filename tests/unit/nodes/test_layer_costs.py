from __future__ import annotations

from typing import Any

import pytest
import torch

from nodes.kv_plan import plan_shard
from nodes.layer_costs import layer_costs, read_costs
from nodes.layers import LayerRange
from nodes.shard import read_blueprint


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma2", "qwen3_moe", "qwen3_next", "gpt_oss"])
def test_the_parts_add_up_to_what_a_shard_takes(toy_folder: Any, family: str) -> None:
    blueprint = read_blueprint(toy_folder(family))
    costs = layer_costs(blueprint, torch.float32)
    n_layers = blueprint.shape.n_layers
    for layers in (LayerRange(0, n_layers), LayerRange(0, n_layers - 1), LayerRange(n_layers - 2, n_layers)):
        plan = plan_shard(blueprint, layers, torch.float32)
        assert costs.weight_bytes(layers) == plan.weight_bytes, layers
        assert costs.bytes(layers) == plan.weight_bytes + plan.footprint.bytes(costs.context_length), layers


def test_half_the_dtype_is_half_the_bytes(toy_folder: Any) -> None:
    single, half = (
        read_costs(toy_folder("llama"), dtype, 64, allow_untested=False) for dtype in ("float32", "bfloat16")
    )
    assert single.context_length == 64
    assert single.bytes(LayerRange(0, 4)) == 2 * half.bytes(LayerRange(0, 4))
    assert single.runs_alone(LayerRange(1, 2))
