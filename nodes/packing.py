"""The tokens of several sessions in one run through a shard's layers.

Decoding reads every weight for each token; packed into one row of tokens, [1, sum of T, hidden], many sessions read
them once. Attention and recurrent mixers belong to one session each: attention runs session by session, with its own
cache and its own mask, through the very function that the model would use alone (so windows, sinks and soft-capping
stay right), and mixers that keep a state run session by session as well. Everything else, projections, MLPs, experts,
runs once for all tokens.

Only for the engine's thread: the model's configuration is changed while a packed step runs.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import create_masks_for_generate
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from nodes.kv_cache import ShardCache

#: The name under which transformers finds `_attend`.
PACKED = "meshnet_packed"


@dataclass(frozen=True)
class Part:
    """One session's share of a packed step: hidden states [1, T, hidden] at the positions that its cache ends with."""

    hidden: torch.Tensor
    past_len: int
    cache: ShardCache


class PackedRows(list[torch.Tensor]):
    """Keys or values of one layer, one tensor for each part; what the attention function gets in a tensor's place."""

    def __init__(self, rows: Sequence[torch.Tensor], step: PackedStep) -> None:
        super().__init__(rows)
        self.step = step


class PackedStep:
    """One run over several parts; the model takes it for its cache. Knows only this step's tokens."""

    is_compileable = False

    def __init__(self, model: Any, parts: Sequence[Part]) -> None:
        config = model.config
        self.caches = [part.cache for part in parts]
        self.lengths = [part.hidden.shape[1] for part in parts]
        self.base: str = config._attn_implementation
        self.eager = getattr(sys.modules[type(model).__module__], "eager_attention_forward", None)
        self.layer_types = getattr(config, "layer_types", None)
        device = model.device
        positions = [
            torch.arange(part.past_len, part.past_len + length, device=device)[None]
            for part, length in zip(parts, self.lengths, strict=True)
        ]
        rows = [part.hidden.to(device) for part in parts]
        self.masks = [
            create_masks_for_generate(
                config=config, inputs_embeds=row, attention_mask=None, cache=part.cache, position_ids=position
            )
            for part, row, position in zip(parts, rows, positions, strict=True)
        ]
        self.hidden = torch.cat(rows, dim=1)
        self.positions = torch.cat(positions, dim=1)

    def inputs(self) -> dict[str, Any]:
        """What the model is called with."""
        kinds = self.masks[0].keys() if isinstance(self.masks[0], dict) else None
        return {
            "inputs_embeds": self.hidden,
            "position_ids": self.positions,
            "attention_mask": None if kinds is None else dict.fromkeys(kinds),
            "cache": self,
            "use_cache": True,
        }

    def mask(self, index: int, layer: int) -> Any:
        """The mask of a part in a layer."""
        mask = self.masks[index]
        if not isinstance(mask, dict):
            return mask
        if self.layer_types is None:
            (only,) = mask.values()
            return only
        return mask[self.layer_types[layer]]

    # -- what a model asks of its cache

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[PackedRows, PackedRows]:
        found = [
            cache.update(key, value, layer_idx)
            for cache, key, value in zip(
                self.caches, keys.split(self.lengths, dim=2), values.split(self.lengths, dim=2), strict=True
            )
        ]
        return PackedRows([key for key, _ in found], self), PackedRows([value for _, value in found], self)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return query_length, 0


@contextmanager
def packed_attention(model: Any) -> Iterator[None]:
    """Inside, the model's layers attend part by part."""
    base = model.config._attn_implementation
    model.config._attn_implementation = PACKED
    try:
        yield
    finally:
        model.config._attn_implementation = base


def run_mixers_by_part(model: Any) -> None:
    """Wraps the layers' recurrent and convolutional mixers, which keep a state of one session, once after loading."""
    for layer in model.base_model.layers:
        for name, child in layer.named_children():
            if name != "self_attn" and "cache" in inspect.signature(child.forward).parameters:
                child.forward = _by_part(child.forward)


def _by_part(forward: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def run(
        hidden_states: torch.Tensor, cache: Any = None, attention_mask: torch.Tensor | None = None, **kwargs: Any
    ) -> torch.Tensor:
        if not isinstance(cache, PackedStep):
            return forward(hidden_states=hidden_states, cache=cache, attention_mask=attention_mask, **kwargs)
        rows = hidden_states.split(cache.lengths, dim=1)
        return torch.cat(
            [
                forward(hidden_states=row, cache=own, attention_mask=None)
                for row, own in zip(rows, cache.caches, strict=True)
            ],
            dim=1,
        )

    return run


def _attend(
    module: Any, query: torch.Tensor, keys: PackedRows, values: PackedRows, attention_mask: Any, **kwargs: Any
) -> tuple[torch.Tensor, None]:
    """The model's own attention, part by part."""
    step = keys.step
    attention = ALL_ATTENTION_FUNCTIONS.get_interface(step.base, step.eager)
    found = [
        attention(module, row, key, value, step.mask(index, module.layer_idx), **kwargs)[0]
        for index, (row, key, value) in enumerate(zip(query.split(step.lengths, dim=2), keys, values, strict=True))
    ]
    return torch.cat(found, dim=1), None


AttentionInterface.register(PACKED, _attend)
AttentionMaskInterface.register(PACKED, lambda **kwargs: None)
