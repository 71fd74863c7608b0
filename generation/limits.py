"""What an API key may still do: the rules, and what whoever counts must be able to do.

Two count: `limits_database`, and `limits_redis` where MESHNET_CACHE_URL names a Redis. Both give the rules below the
same counts, so that clients cannot tell which of them it was.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Protocol

from generation.errors import QuotaExceeded, RateLimitExceeded, RequestRefused
from generation.key_usage import day_of
from generation.models import APIKey

WINDOW = timedelta(seconds=60)


@dataclass(frozen=True)
class Level:
    """One limit: what is left of it, and in how many seconds all of it will be there again."""

    limit: int
    remaining: int
    reset_seconds: float


@dataclass(frozen=True)
class Standing:
    """How a key stands with its limits; None where it has none."""

    requests: Level | None = None
    tokens: Level | None = None


@dataclass(frozen=True)
class Admission:
    """A request that was let in. `held` is what is given back by; None when nothing is held for it."""

    standing: Standing
    held: Hashable | None = None


@dataclass(frozen=True)
class Counts:
    """What is known of a key at one moment: requests of the window, the newest of them, the one after whose leaving
    there is room for a further one (None: there is room), running generations, tokens of the day.
    """

    now: datetime
    requests: int
    newest: datetime | None
    leaving: datetime | None
    running: int
    tokens: int


class KeyLimits(Protocol):
    """Lets requests of keys in and gives back what they hold. One per process; used by all its threads."""

    def admit(self, key: APIKey, *, owner: str, generations: int = 1) -> Admission:
        """Lets in one request that asks for so many generations at once. `owner` is the worker's boot id.

        Raises RateLimitExceeded and QuotaExceeded, which carry the key's `standing`; RequestRefused when so many can
        never run at once; LimitsUnavailable when nothing can be counted. What was let in must be given back.
        """

    def give_back(self, admission: Admission) -> None:
        """The answer has been made, or failed. Never raises; the second time nothing happens."""

    def standing(self, key: APIKey) -> Standing:
        """How the key stands now, for an answer that counts for nothing. Empty when it cannot be told."""

    def used(self, key: APIKey, day: date) -> None:
        """Tokens of the key were just added to that day of it in the database. Never raises."""


def refuse(key: APIKey, counts: Counts, generations: int) -> None:
    """Raises what tells the client why a request of so many generations is not let in; returns when it may be."""
    standing = standing_of(key, counts, taken=0)
    most = key.concurrent_generations
    if most is not None and generations > most:
        raise RequestRefused(f"This API key may run {most} generations at once, not {generations}.", param="n")
    if key.tokens_per_day is not None and counts.tokens >= key.tokens_per_day:
        raise QuotaExceeded(
            f"This API key has used its {key.tokens_per_day} tokens of today (UTC).",
            retry_after=_seconds_left(counts.now),
            standing=standing,
        )
    if (limit := key.requests_per_minute) is not None and counts.leaving is not None:
        raise RateLimitExceeded(
            f"This API key may send {limit} requests per minute.",
            retry_after=_whole((counts.leaving + WINDOW - counts.now).total_seconds()),
            standing=standing,
        )
    if most is not None and counts.running + generations > most:
        raise RateLimitExceeded(
            f"This API key may run {most} generations at once; {counts.running} are running.",
            retry_after=1,
            standing=standing,
        )


def standing_of(key: APIKey, counts: Counts, *, taken: int) -> Standing:
    """`taken`: how many requests were let in after these counts, at the same moment."""
    requests = tokens = None
    if (limit := key.requests_per_minute) is not None:
        newest = counts.now if taken else counts.newest
        reset = 0.0 if newest is None else (newest + WINDOW - counts.now).total_seconds()
        requests = Level(limit, max(0, limit - counts.requests - taken), reset)
    if (limit := key.tokens_per_day) is not None:
        tokens = Level(limit, max(0, limit - counts.tokens), _seconds_left(counts.now))
    return Standing(requests, tokens)


def _seconds_left(now: datetime) -> int:
    """Whole seconds until the day ends, in UTC."""
    tomorrow = datetime.combine(day_of(now) + timedelta(days=1), time(tzinfo=UTC))
    return _whole((tomorrow - now).total_seconds())


def _whole(seconds: float) -> int:
    return max(1, math.ceil(seconds))
