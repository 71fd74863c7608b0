"""What a generation is to do, and how it is going: plain values between the loop and whoever starts and records it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from generation.route import Route
from nodes.sampling_parameters import Sampling
from nodes.wire import Timings


@dataclass(frozen=True)
class LoopSettings:
    """What the mesh serves and how patient the loop is; times in seconds."""

    fingerprint: str
    dtype: str
    n_layers: int
    vocab_size: int
    context_length: int
    piece_tokens: int = 64
    #: A node that does not answer a step for so long is asked whether it lives; a slow one for longer.
    step_patience: float = 2.0
    step_timeout: float = 60.0
    busy_wait: float = 30.0
    #: How long a generation under way waits for layers that no node holds any more.
    route_wait: float = 120.0
    #: How long a generation may take in all.
    longest: float = 3600.0
    #: Whether the nodes of a route hand decode steps over to each other, where they can.
    handover: bool = False


@dataclass(frozen=True)
class Job:
    """One generation to run. stop_ids end it and are not part of the text; cache False runs every step statelessly.

    encode turns text into ids, for a tail of the old protocol that sends no token ids.
    """

    session_id: str
    prompt_ids: list[int]
    max_new_tokens: int
    stop_ids: frozenset[int]
    sampling: Sampling = field(default_factory=Sampling)
    cache: bool = True
    encode: Callable[[str], list[int]] | None = None


@dataclass
class HopTimes:
    """Where the time went on one node, milliseconds over all steps. network: framing and HTTP included."""

    steps: int = 0
    compute_ms: float = 0.0
    queue_ms: float = 0.0
    network_ms: float = 0.0

    def add(self, total_ms: float, timings: Timings) -> None:
        self.steps += 1
        self.compute_ms += timings.compute_ms
        self.queue_ms += timings.queue_ms
        self.network_ms += max(0.0, total_ms - timings.compute_ms - timings.queue_ms)

    def copy(self) -> HopTimes:
        return replace(self)


@dataclass
class Progress:
    """What happened so far; written by the loop's thread, read by whoever keeps records. Times in seconds."""

    started: float = 0.0
    first_token_at: float | None = None
    last_token_at: float | None = None
    completion_tokens: int = 0
    prefills: int = 0
    #: Prefills that brought lost caches back. A first prefill that waited for its slots is none.
    reprefills: int = 0
    cache_misses: int = 0
    failovers: int = 0
    cached: bool = True
    route: Route | None = None
    touched: set[str] = field(default_factory=set)
    finish_reason: str = ""
    hops: dict[str, HopTimes] = field(default_factory=dict)
    #: Seconds since the start, what happened, and on which node or why; bounded.
    events: list[tuple[float, str, str]] = field(default_factory=list)

    @property
    def time_to_first_token(self) -> float | None:
        return None if self.first_token_at is None else self.first_token_at - self.started

    @property
    def tokens_per_second(self) -> float | None:
        """Of the decode phase: first token to last."""
        if self.first_token_at is None or self.last_token_at is None or self.completion_tokens < 2:
            return None
        seconds = self.last_token_at - self.first_token_at
        return (self.completion_tokens - 1) / seconds if seconds > 0 else None
