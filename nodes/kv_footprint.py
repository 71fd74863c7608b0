"""How many bytes a session takes on a shard, by the number of its tokens. Plain numbers: no tensors, no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LayerFootprint:
    """One layer's cache: `fixed` bytes (recurrent states), and `per_token` for each token up to `most_tokens`.

    most_tokens is what a sliding window keeps; None grows with the text.
    """

    fixed: int = 0
    per_token: int = 0
    most_tokens: int | None = None

    def bytes(self, tokens: int) -> int:
        kept = tokens if self.most_tokens is None else min(tokens, self.most_tokens)
        return self.fixed + self.per_token * kept


@dataclass(frozen=True)
class Footprint:
    """All layers of a shard."""

    layers: tuple[LayerFootprint, ...] = ()

    def bytes(self, tokens: int) -> int:
        """Of a session that holds so many tokens; none of no tokens."""
        return sum(layer.bytes(tokens) for layer in self.layers) if tokens else 0

    @property
    def per_token(self) -> int:
        """What a further token adds to a text that is longer than every window."""
        return sum(layer.per_token for layer in self.layers if layer.most_tokens is None)
