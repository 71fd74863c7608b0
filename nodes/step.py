"""One step of one session on a node, from its arrival to its answer."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch

from nodes.kv_sessions import SessionCacheEntry
from nodes.layers import LayerRange
from nodes.sampling_parameters import Sampling, TokenLogprobs
from nodes.wire import Timings


@dataclass(frozen=True)
class Chosen:
    """What the tail chose. token_id None: no token was wanted."""

    token_id: int | None = None
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True)
class StepResult:
    """hidden of an inner stretch, [1, T, hidden], a plain tensor; or what the tail chose. held: tokens held now."""

    held: int
    hidden: torch.Tensor | None = None
    chosen: Chosen | None = None
    timings: Timings = field(default_factory=Timings)


@dataclass
class Step:
    """Made by the thread of a request, run by the engine's. params is None for layers that do not end the model.

    past_len None is a prefill. done counts the tokens that have run: a long prompt runs over several turns.
    """

    entry: SessionCacheEntry
    layers: LayerRange
    hidden: torch.Tensor
    past_len: int | None
    params: Sampling | None = None
    token_ids: torch.Tensor | None = None
    queued_at: float = 0.0
    future: Future[StepResult] = field(default_factory=Future)
    done: int = 0
    outputs: list[torch.Tensor] = field(default_factory=list)
    queue_ms: float = 0.0
    compute_ms: float = 0.0

    @property
    def session_id(self) -> str:
        return self.entry.session_id

    @property
    def cache(self) -> Any:
        """The session's `ShardCache`, which the store knows only as something that has a length and bytes."""
        return self.entry.cache

    @property
    def tokens(self) -> int:
        return self.hidden.shape[1]

    @property
    def left(self) -> int:
        return self.tokens - self.done

    @property
    def is_decode(self) -> bool:
        """One token behind a text that is held: the step of a running answer."""
        return self.past_len is not None and self.tokens == 1

    @property
    def position(self) -> int:
        """Where the next token to run stands in the text."""
        return (self.past_len or 0) + self.done

    @property
    def wants_token(self) -> bool:
        return self.params is not None and self.params.want_token

    def next(self, tokens: int) -> torch.Tensor:
        return self.hidden[:, self.done : self.done + tokens]

    def restart(self) -> None:
        """Nothing of it has run."""
        self.done = 0
        self.outputs.clear()
