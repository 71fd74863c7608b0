"""Milliseconds per token at two lengths of a text, measured in turn on the same mesh.

Two generations live side by side, one at a short text and one at a long one, and are stepped alternately: whatever
the machine does meanwhile hits both. Absolute times on a shared machine mean little; the ratio is the result.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from generation.head import TokenLoop
from generation.job import Job
from nodes.wire import mint_session_id


@dataclass(frozen=True)
class Pace:
    """Samples in milliseconds per token."""

    short_at: int
    long_at: int
    short_ms: list[float]
    long_ms: list[float]

    @property
    def ratio(self) -> float:
        return statistics.median(self.long_ms) / statistics.median(self.short_ms)

    def as_json(self) -> dict[str, Any]:
        return {
            "short_at": self.short_at,
            "long_at": self.long_at,
            "short_ms_median": statistics.median(self.short_ms),
            "long_ms_median": statistics.median(self.long_ms),
            "ratio": self.ratio,
            "short_ms": self.short_ms,
            "long_ms": self.long_ms,
        }


def measure_pace(
    make_loop: Callable[[Job], TokenLoop],
    release: Callable[[TokenLoop], None],
    *,
    vocab_size: int,
    cache: bool = True,
    short_at: int = 40,
    long_at: int = 400,
    steps: int = 20,
    rounds: int = 5,
    clock: Callable[[], float] = time.perf_counter,
    progress: Callable[[int], None] = lambda done: None,
) -> Pace:
    """Steps both generations `steps` times in turn, in each of `rounds`, centred on the two lengths.

    The texts are random ids, the same in every round: what is said does not change what a step costs. `release`
    ends a loop's session on the nodes.
    """
    rng = random.Random(0)  # noqa: S311  # the text of a benchmark
    text = [rng.randrange(vocab_size) for _ in range(long_at)]
    short_ms: list[float] = []
    long_ms: list[float] = []
    for done in range(rounds):
        loops = [
            make_loop(
                Job(
                    session_id=mint_session_id(),
                    prompt_ids=text[: at - steps // 2],
                    max_new_tokens=steps + 2,
                    stop_ids=frozenset(),
                    cache=cache,
                )
            )
            for at in (short_at, long_at)
        ]
        streams = [loop.tokens() for loop in loops]
        for stream in streams:
            next(stream)  # the prompt
        for _ in range(steps):
            for stream, samples in zip(streams, (short_ms, long_ms), strict=True):
                samples.append(_timed(stream, clock))
        for stream, loop in zip(streams, loops, strict=True):
            stream.close()
            release(loop)
        progress(done + 1)
    return Pace(short_at, long_at, short_ms, long_ms)


def _timed(stream: Iterator[int], clock: Callable[[], float]) -> float:
    begun = clock()
    next(stream)
    return (clock() - begun) * 1e3
