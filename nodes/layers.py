"""A stretch of layers, `start:end` with the end excluded."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class LayerRange:
    """Layers [start, end) of a model; empty ranges only occur in a node's proof."""

    start: int
    end: int

    @classmethod
    def parse(cls, text: str) -> LayerRange:
        """`"0:15"` -> LayerRange(0, 15). Raises ValueError on anything else and on an empty range."""
        match = re.fullmatch(r"(\d{1,6}):(\d{1,6})", text.strip())
        if match is None:
            raise ValueError(f"{text!r} is not start:end.")
        start, end = int(match[1]), int(match[2])
        if start >= end:
            raise ValueError(f"{text!r} holds no layer.")
        return cls(start, end)

    @property
    def size(self) -> int:
        # Not __len__: an empty range would be false, and `layers or default` would silently run the default.
        return self.end - self.start

    def __contains__(self, layer: int) -> bool:
        return self.start <= layer < self.end

    def holds(self, other: LayerRange) -> bool:
        return self.start <= other.start and other.end <= self.end

    def __str__(self) -> str:
        return f"{self.start}:{self.end}"


def split_evenly(n_layers: int, shards: int) -> list[LayerRange]:
    """n_layers in `shards` stretches whose sizes differ by at most one, the larger ones first.

    Raises ValueError when there would be a shard without a layer.
    """
    if not 1 <= shards <= n_layers:
        raise ValueError(f"A model of {n_layers} layers can be split into 1 to {n_layers} shards, not {shards}.")
    size, rest = divmod(n_layers, shards)
    ranges, start = [], 0
    for index in range(shards):
        end = start + size + (1 if index < rest else 0)
        ranges.append(LayerRange(start, end))
        start = end
    return ranges
