"""How fast a node works, from the totals of its status at two moments."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from nodes.amounts import is_number


@dataclass(frozen=True)
class Mark:
    """A node's totals since its start, as they were at one moment of a monotonic clock."""

    at: float
    steps: float
    tokens: float
    compute_ms: float
    queue_ms: float


@dataclass(frozen=True)
class NodePace:
    """Steps and tokens per second, and what a step took on average: None while no step was taken."""

    steps_per_second: float
    tokens_per_second: float
    compute_ms: float | None
    queue_ms: float | None


def mark_of(status: dict[str, Any], at: float) -> Mark | None:
    """The totals in a node's status; None when it does not say them."""
    work = status.get("work")
    if not isinstance(work, dict) or not isinstance(work.get("steps"), dict):
        return None
    numbers = [*work["steps"].values(), work.get("tokens"), work.get("compute_ms"), work.get("queue_ms")]
    if not all(is_number(number) for number in numbers):
        return None
    return Mark(at, sum(work["steps"].values()), work["tokens"], work["compute_ms"], work["queue_ms"])


def pace_of(marks: Iterable[Mark], *, since: float) -> NodePace | None:
    """The pace from the oldest mark that is not older than `since` to the newest one.

    With fewer than two such marks it is taken over the last two. None while there are no two, or when the totals went
    backwards.
    """
    ordered = list(marks)
    if len(ordered) < 2:
        return None
    young = [mark for mark in ordered if mark.at >= since]
    first, last = young[0] if len(young) > 1 else ordered[-2], ordered[-1]
    seconds, steps = last.at - first.at, last.steps - first.steps
    if seconds <= 0 or steps < 0:
        return None
    return NodePace(
        steps_per_second=steps / seconds,
        tokens_per_second=(last.tokens - first.tokens) / seconds,
        compute_ms=(last.compute_ms - first.compute_ms) / steps if steps else None,
        queue_ms=(last.queue_ms - first.queue_ms) / steps if steps else None,
    )
