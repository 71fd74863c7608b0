"""What things take in a simulated mesh: compute, network, and the texts that people ask for. All of it is assumed.

Lengths are counted in blocks of `block_tokens` tokens: a decode step stands for so many tokens one after the other,
and costs as much. Else ten thousand answers of some hundred tokens would be thirty million steps.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Cost:
    """The model and its machines. Milliseconds of one token, bytes of one token's cache in one layer."""

    n_layers: int = 80
    stretches: int = 5
    layer_ms: float = 1.0
    #: Of each token of a prompt: many at once use a machine better than one.
    prompt_layer_ms: float = 0.02
    #: What each further session in one turn of a node adds to the turn.
    share: float = 0.1
    cache_bytes: int = 4096
    shortest_trip_ms: float = 1.0
    longest_trip_ms: float = 10.0
    block_tokens: int = 16

    def turn_seconds(self, layers: int, decodes: int, prompt_blocks: int) -> float:
        """One turn of a node: so many decode steps at once, and so many blocks of prompts beside them."""
        decode = self.layer_ms * (1 + self.share * (decodes - 1)) if decodes else 0.0
        return layers * self.block_tokens * (decode + self.prompt_layer_ms * prompt_blocks) / 1e3

    def trip_seconds(self, rng: random.Random) -> float:
        """One way between a head and one node, of one token."""
        return rng.uniform(self.shortest_trip_ms, self.longest_trip_ms) / 1e3

    def blocks(self, tokens: float) -> int:
        return max(1, math.ceil(tokens / self.block_tokens))

    def answer_seconds(self, prompt_tokens: float, answer_tokens: float) -> float:
        """An answer that waits for nothing, relayed; what a slot is taken for. Plans take near nodes, as runs show."""
        trip = self.shortest_trip_ms + 0.2 * (self.longest_trip_ms - self.shortest_trip_ms)
        token_ms = self.n_layers * self.layer_ms + 2 * self.stretches * trip
        first_ms = self.n_layers * self.prompt_layer_ms * prompt_tokens + 2 * self.stretches * trip
        return (first_ms + token_ms * answer_tokens) / 1e3


@dataclass(frozen=True)
class Texts:
    """Lengths in tokens, both lognormal: the median, how far they spread, and where they are cut off."""

    prompt_median: float = 180.0
    prompt_sigma: float = 1.0
    prompt_most: int = 4096
    answer_median: float = 240.0
    answer_sigma: float = 0.8
    answer_most: int = 2048

    def prompt(self, rng: random.Random) -> float:
        return min(self.prompt_most, rng.lognormvariate(math.log(self.prompt_median), self.prompt_sigma))

    def answer(self, rng: random.Random) -> float:
        return min(self.answer_most, rng.lognormvariate(math.log(self.answer_median), self.answer_sigma))

    def means(self, draws: int = 20_000) -> tuple[float, float]:
        """Of prompts and answers, as they are cut off."""
        rng = random.Random(0)  # noqa: S311  # nothing secret
        return (
            sum(self.prompt(rng) for _ in range(draws)) / draws,
            sum(self.answer(rng) for _ in range(draws)) / draws,
        )
