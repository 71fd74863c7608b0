"""The cache of one session on one shard: transformers' own layer caches for this shard's layers, nothing elsewhere."""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import CacheLayerMixin, DummyLayer

from nodes.kv_footprint import Footprint, LayerFootprint
from nodes.layers import LayerRange


class ShardCache(DynamicCache):
    """A DynamicCache that is filled in [start, end) only. Used by the engine's thread alone.

    Layers outside hold DummyLayer: with plain empty layers there, masks are built from a layer that is never filled
    and every step of several tokens on top of a cache is silently wrong (case A01). The cache counts its own tokens:
    a shard of linear-attention layers alone has no layer that knows (case A02), and a sliding window's tensors are
    shorter than the text (case A04).
    """

    def __init__(self, config: Any, layers: LayerRange) -> None:
        super().__init__(config=config)
        for index in range(len(self.layers)):
            if index not in layers:
                self.layers[index] = DummyLayer()
        self.tokens = 0
        #: Ids of the text, on the tail of a generation whose sampling needs them.
        self.history: list[int] = []
        self._tracks_length = any(isinstance(layer, CacheLayerMixin) for layer in self.layers)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        if not self._tracks_length:
            return self.tokens
        return int(super().get_seq_length(layer_idx))

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        if not self._tracks_length:
            return self.tokens + query_length, 0
        return super().get_mask_sizes(query_length, layer_idx)

    def advance(self, tokens: int) -> None:
        """To be called after each step that succeeded; makes windows own their memory."""
        self.tokens += tokens
        for layer in self.layers:
            if getattr(layer, "is_sliding", False):
                _own_storage(layer)

    def nbytes(self) -> int:
        """Bytes of the unique storages behind the tensors: what is really kept alive, also by views."""
        storages = {}
        for tensor in self.tensors():
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
        return sum(storages.values())

    def footprint(self) -> Footprint:
        """What the layers take by the number of tokens, read off a cache that holds some."""
        found = []
        for layer in self.layers:
            fixed, per_token, most = sum(tensor.nbytes for tensor in _tensors(layer)), 0, None
            keys = getattr(layer, "keys", None)
            if keys is not None and keys.numel():
                grown = keys.nbytes + layer.values.nbytes
                fixed, per_token = fixed - grown, grown // keys.shape[-2]
                most = layer.sliding_window - 1 if layer.is_sliding else None
            found.append(LayerFootprint(fixed, per_token, most))
        return Footprint(tuple(found))

    def tensors(self) -> list[torch.Tensor]:
        return [tensor for layer in self.layers for tensor in _tensors(layer)]


def _tensors(layer: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for value in vars(layer).values():
        if isinstance(value, torch.Tensor) and value.numel() > 1:  # not the window's size, a tensor of one number
            found.append(value)
        elif isinstance(value, dict):  # states of linear-attention layers
            found.extend(state for state in value.values() if isinstance(state, torch.Tensor))
    return found


def _own_storage(layer: Any) -> None:
    """After a long prefill a window is a slice of a storage that is many times larger: copy it out once."""
    for name in ("keys", "values"):
        tensor = getattr(layer, name, None)
        if tensor is None:
            continue
        if tensor.untyped_storage().nbytes() > 1.25 * tensor.numel() * tensor.element_size():
            setattr(layer, name, tensor.clone())
