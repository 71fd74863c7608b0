"""What layers take, as plain numbers: a model for tests of splits, without torch."""

from __future__ import annotations

from dataclasses import dataclass

from nodes.layers import LayerRange


@dataclass(frozen=True)
class FakeCosts:
    """Layer i needs the keys of i - 1 where `bound` holds i."""

    weights: tuple[int, ...]
    caches: tuple[int, ...]
    tail: int = 0
    bound: frozenset[int] = frozenset()
    context_length: int = 100

    @property
    def n_layers(self) -> int:
        return len(self.weights)

    def weight_bytes(self, layers: LayerRange) -> int:
        return sum(self.weights[layers.start : layers.end]) + (self.tail if layers.end == self.n_layers else 0)

    def bytes(self, layers: LayerRange) -> int:
        return self.weight_bytes(layers) + sum(self.caches[layers.start : layers.end])

    def runs_alone(self, layers: LayerRange) -> bool:
        return layers.start not in self.bound


def even(n_layers: int, *, tail: int = 0) -> FakeCosts:
    """Layers of 10 bytes with a cache of 1."""
    return FakeCosts((10,) * n_layers, (1,) * n_layers, tail)
