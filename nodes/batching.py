"""Which of the waiting steps run together. Pure: no torch, no clock, no thread.

Each turn of the engine takes the layers of the step that has waited longest, and of those that want the same layers:

1. every step of one token, since together they cost little more than one: at most MOST_SESSIONS;
2. pieces of prompts in the order of their coming, as many tokens as the budget leaves. Beside running answers the
   budget is small, so that a long prompt delays their next tokens by little; alone it is large.

Who has waited longest is always in the turn, so that nobody waits for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from nodes.layers import LayerRange

#: One-token steps in one turn.
MOST_SESSIONS = 64


class Waiting(Protocol):
    """A step in the queue. left: tokens that are still to run."""

    @property
    def session_id(self) -> str: ...
    @property
    def layers(self) -> LayerRange: ...
    @property
    def left(self) -> int: ...
    @property
    def is_decode(self) -> bool: ...


@dataclass(frozen=True)
class Budget:
    """Tokens that prompts may take in one turn: `alone`, or `beside` running answers."""

    alone: int = 512
    beside: int = 32


def pick(waiting: Sequence[Waiting], budget: Budget, *, answers_run: bool) -> list[tuple[int, int]]:
    """Places in `waiting` (the oldest first) and how many tokens of each are to run now; never empty.

    `answers_run`: steps of one token came lately, and more of them will.
    """
    layers = waiting[0].layers
    # Of one session only the step that came first: what follows it must find its cache grown.
    first: dict[str, int] = {}
    for index, step in enumerate(waiting):
        first.setdefault(step.session_id, index)
    able = [index for index in first.values() if waiting[index].layers == layers]
    picked = [(index, 1) for index in able if waiting[index].is_decode][:MOST_SESSIONS]
    left = budget.beside if picked or answers_run else budget.alone
    for index in able:
        tokens = 0 if waiting[index].is_decode else min(waiting[index].left, left)
        if tokens:
            picked.append((index, tokens))
            left -= tokens
    return sorted(picked)
