"""What each layer of a model takes in memory, told from its configuration alone (nodes/kv_plan.py). Loads torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nodes.errors import ShardRefused
from nodes.kv_footprint import Footprint, LayerFootprint
from nodes.kv_plan import plan_shard, weight_bytes
from nodes.kv_sharing import runs_alone
from nodes.layers import LayerRange
from nodes.shard import Blueprint, part_of, read_blueprint, sketch


@dataclass(frozen=True)
class LayerCosts:
    """Per layer the bytes of its weights and the cache of one session; `tail` is what the last layer's node adds.

    The cache is that of a text of `context_length` tokens.
    """

    config: Any
    context_length: int
    weights: tuple[int, ...]
    caches: tuple[int, ...]
    tail: int

    @property
    def n_layers(self) -> int:
        return len(self.weights)

    def weight_bytes(self, layers: LayerRange) -> int:
        tail = self.tail if layers.end == self.n_layers else 0
        return sum(self.weights[layers.start : layers.end]) + tail

    def bytes(self, layers: LayerRange) -> int:
        """Weights and one session of the longest text: with less a node could not serve at all."""
        return self.weight_bytes(layers) + sum(self.caches[layers.start : layers.end])

    def runs_alone(self, layers: LayerRange) -> bool:
        """Whether no layer of them needs the keys of one outside."""
        return runs_alone(self.config, layers)


def read_costs(folder: Path, dtype: str, context_length: int, *, allow_untested: bool) -> LayerCosts:
    """Raises ShardRefused when they cannot be told without the weights, or the model cannot be served."""
    from nodes.framing import DTYPES

    blueprint = read_blueprint(folder, context_length, allow_untested=allow_untested)
    return layer_costs(blueprint, DTYPES[dtype])


def layer_costs(blueprint: Blueprint, dtype: torch.dtype) -> LayerCosts:
    shape = blueprint.shape
    whole = LayerRange(0, shape.n_layers)
    footprint = plan_shard(blueprint, whole, dtype).footprint
    with torch.inference_mode():
        model = sketch(blueprint, part_of(blueprint, whole), dtype)
        weights = tuple(weight_bytes(block) for block in model.base_model.layers)
        tail = weight_bytes(model) - sum(weights)
    return LayerCosts(
        config=blueprint.config,
        context_length=shape.context_length,
        weights=weights,
        caches=tuple(layer.bytes(shape.context_length) for layer in _per_layer(footprint, shape.n_layers)),
        tail=tail,
    )


def _per_layer(footprint: Footprint, n_layers: int) -> tuple[LayerFootprint, ...]:
    """One entry per layer: late layers that reuse the keys of earlier ones have none of their own."""
    missing = n_layers - len(footprint.layers)
    if missing < 0:
        raise ShardRefused("The cache has more layers than the model.")
    return footprint.layers + (LayerFootprint(),) * missing
