"""How much is measured: rounds, tokens, lengths. Plain values, and when a measure takes no further round."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

#: What a measure can be called with `--only`, in the order in which they run.
MEASURES = ("decode", "hops", "wire", "flatness", "ttft", "sessions", "stall", "memory", "handover")
#: The fixed names of `latest.json`, and the measure that gives each.
RATIOS = {
    "mesh2_vs_generate": "decode",
    "mesh2_vs_transformers_pp": "decode",
    "flatness_512_vs_32": "flatness",
    "agg8_vs_generate": "sessions",
    "agg16_vs_generate": "sessions",
    "hop_ms_p50": "hops",
    "hop_ms_p95": "hops",
    "wire_bytes_over_payload": "wire",
    "ttft512_mesh2_vs_generate": "ttft",
    "stall_max_vs_median": "stall",
    "handover_vs_relay_20ms": "handover",
    "mesh2_vs_llama_cpp": "decode",
}


@dataclass(frozen=True)
class Scale:
    """Lengths in tokens. `seconds` bounds the rounds of each measure: the first round always runs to its end."""

    rounds: int = 5
    #: New tokens of each contender in a round, behind a prompt of `prompt` tokens.
    tokens: int = 32
    prompt: int = 32
    meshes: tuple[int, ...] = (1, 2, 3)
    #: Where milliseconds per token are compared, and steps around each.
    lengths: tuple[int, ...] = (32, 128, 512)
    steps: int = 12
    stateless_steps: int = 2
    prompts: tuple[int, ...] = (32, 512, 2000)
    sessions: tuple[int, ...] = (1, 2, 4, 8, 16)
    stall_sessions: int = 4
    stall_prompt: int = 2000
    #: Steps that each session has before the long prompt comes.
    stall_steps: int = 12
    delay_ms: float = 20.0
    tries: int = 3
    #: Whether every contender is tried with several thread counts and ways of waiting.
    tunes: bool = True
    seconds: float = float("inf")

    def as_json(self) -> dict[str, Any]:
        return {**self.__dict__, "seconds": self.seconds if math.isfinite(self.seconds) else None}

    def fits(self, context_length: int) -> Scale:
        """The same for a model of a short context: longer lengths are left out."""
        room = context_length - self.steps - 2
        return replace(
            self,
            lengths=tuple(at for at in self.lengths if at <= room),
            prompts=tuple(length for length in self.prompts if length <= room),
            stall_prompt=min(self.stall_prompt, room),
        )


#: Ends within 4 minutes on two cores.
QUICK = Scale(
    rounds=3,
    tokens=16,
    meshes=(2, 3),
    steps=8,
    stateless_steps=1,
    prompts=(32, 512),
    sessions=(1, 8, 16),
    stall_steps=8,
    tries=2,
    tunes=False,
    seconds=14.0,
)


def rounds(scale: Scale, *, clock: Callable[[], float] = time.monotonic) -> Iterator[int]:
    """The numbers of the rounds to take; ends early once the measure's time is over."""
    begun = clock()
    for number in range(scale.rounds):
        if number and clock() - begun >= scale.seconds:
            return
        yield number


def turned(names: list[str], number: int) -> list[str]:
    """The contenders' order in a round: each begins one in turn, so that none always follows the same other."""
    start = number % len(names) if names else 0
    return names[start:] + names[:start]


def wanted(only: list[str]) -> list[str]:
    """The measures behind the given names of measures and ratios, in running order; all when none is given.

    Raises KeyError with the first name that means nothing.
    """
    if not only:
        return list(MEASURES)
    found = {name if name in MEASURES else RATIOS[name] for name in only}
    return [name for name in MEASURES if name in found]
