"""How many sessions fit beside a shard's weights, told from the configuration alone: no weight file is opened.

The shard is built on torch's meta device, where tensors have shapes but no memory, and runs a few tokens there. So
the numbers come from the model's own code: what the proof of the real shard finds (nodes/proof.py), and not a formula.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from nodes.errors import ModelUnavailable, ShardRefused
from nodes.kv_footprint import Footprint
from nodes.kv_sharing import check_sharing
from nodes.layers import LayerRange
from nodes.model_files import CONFIG, is_hub_id, models_dir
from nodes.proof import PIECES
from nodes.shard import Blueprint, ModelShard, part_of, sketch


@dataclass(frozen=True)
class ShardPlan:
    """What a shard takes, in bytes."""

    layers: LayerRange
    weight_bytes: int
    footprint: Footprint

    def sessions(self, context: int, memory: int) -> int:
        """How many sessions of so many tokens fit into the memory beside the weights."""
        return max(0, memory - self.weight_bytes) // self.footprint.bytes(context)


def config_folder(model: str, var_dir: Path) -> Path:
    """A folder with the model's config.json; the weights need not be there. Raises ModelUnavailable.

    Of a hub model that is not here, that one file is fetched.
    """
    for folder in (models_dir(var_dir) / model, Path(model).expanduser()):
        if model and folder.is_dir():
            if not (folder / CONFIG).is_file():
                raise ModelUnavailable(f"{folder} holds no {CONFIG}.")
            return folder.resolve()
    if not is_hub_id(model):
        raise ModelUnavailable(f"There is no model {model!r}: name a folder, a model in the var folder, or a hub id.")
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    kept = try_to_load_from_cache(model, CONFIG)
    try:
        return Path(kept if isinstance(kept, str) else hf_hub_download(model, CONFIG)).parent
    except (OSError, ValueError) as error:  # what the hub's client raises are all of the two
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelUnavailable(f"The {CONFIG} of {model} cannot be fetched: {reason}") from None


@torch.inference_mode()
def plan_shard(blueprint: Blueprint, layers: LayerRange, dtype: torch.dtype) -> ShardPlan:
    """Raises ShardRefused when the shard cannot exist, or its cache cannot be told without its weights."""
    shape = blueprint.shape
    if not LayerRange(0, shape.n_layers).holds(layers):
        raise ShardRefused(f"The model has layers 0:{shape.n_layers}; {layers} is not among them.")
    check_sharing(blueprint.config, layers)
    if getattr(blueprint.config, "quantization_config", None):
        raise ShardRefused("The weights are quantised: what they take cannot be told without them.")
    try:
        model = sketch(blueprint, part_of(blueprint, layers), dtype)
        if model._can_set_experts_implementation():
            # The default one looks at values, or takes 16 bit only on this device.
            model.set_experts_implementation("batched_mm")
        shard = ModelShard(model, blueprint.config, shape, layers)
        cache = shard.new_cache()
        for piece in PIECES:
            hidden = torch.empty(1, piece, shape.hidden_size, dtype=dtype, device="meta")
            shard.forward(hidden, cache.tokens, cache)
    except ShardRefused:
        raise
    except Exception as error:  # whatever the code of an untested model raises
        raise ShardRefused(
            f"The cache of the layers {layers} cannot be told without weights: {type(error).__name__}: {error}"
        ) from error
    footprint = cache.footprint()
    if not footprint.bytes(1):
        raise ShardRefused(f"The layers {layers} keep no cache.")
    return ShardPlan(layers, weight_bytes(model), footprint)


def plan_head(blueprint: Blueprint, dtype: torch.dtype) -> int:
    """Bytes of the weights that each head worker keeps: the embeddings."""
    return weight_bytes(sketch(blueprint, part_of(blueprint, None), dtype))


def weight_bytes(model: Any) -> int:
    """Bytes of the parameters; one that two modules share counts once."""
    return sum(parameter.nbytes for parameter in model.parameters())


def as_json(plans: Sequence[ShardPlan], context: int, memory: int | None) -> list[dict[str, Any]]:
    return [
        {
            "layers": str(plan.layers),
            "weight_bytes": plan.weight_bytes,
            "kv_bytes_per_token": plan.footprint.per_token,
            "kv_bytes_per_session": plan.footprint.bytes(context),
            "sessions": None if memory is None else plan.sessions(context, memory),
        }
        for plan in plans
    ]
