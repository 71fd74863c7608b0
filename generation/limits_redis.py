"""Limits of API keys counted in a Redis that all heads share (MESHNET_CACHE_URL); docs/decisions/0028-shared-state.md.

Per key three entries, named by its prefix, which is no secret: requests of the last 60 seconds, leases of running
generations, and what the database says that it used today. One script looks and takes, so that of two requests one
looks second. A lease lasts LEASE and is renewed while its answer is under way (`limits_leases`).

The database stays the truth for tokens. After each generation its day is read there and told to Redis, and believed
for YOUNG: so a Redis that was empty, or missed something, has it again. Requests of the minute are lost with a Redis
that forgets; leases come back with their next renewal.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import Error as DatabaseError
from redis import Redis
from redis.exceptions import RedisError

from generation.errors import LimitsUnavailable
from generation.key_usage import day_of, tokens_used
from generation.limits import WINDOW, Admission, Counts, Standing, refuse, standing_of
from generation.limits_leases import Lease, Leases, microseconds
from generation.limits_scripts import ADMIT, TELL_TOKENS
from generation.models import APIKey

logger = logging.getLogger(__name__)

#: What the database said is believed for so long, if nobody tells anything newer.
YOUNG = timedelta(seconds=60)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class RedisKeyLimits:
    """See `generation.limits.KeyLimits`. With a `clock` its time counts, without one that of Redis."""

    def __init__(self, redis: Redis, clock: Callable[[], datetime] | None = None) -> None:
        self._clock = clock
        self._admit = redis.register_script(ADMIT)
        self._tell = redis.register_script(TELL_TOKENS)
        self.leases = Leases(redis, clock)

    @classmethod
    def from_settings(cls) -> RedisKeyLimits:
        """Speaks to nobody yet."""
        return cls(Redis.from_url(settings.MESHNET_CACHE_URL, **settings.CACHE_CONNECTION))

    def admit(self, key: APIKey, *, owner: str, generations: int = 1) -> Admission:
        if not key.has_limits:
            return Admission(Standing())
        lease = Lease(_name(key, "leases"), f"{owner}:{secrets.token_urlsafe(9)}:{generations}")
        try:
            taken, counts = self._count(key, lease, generations)
            if not taken:
                refuse(key, counts, generations)
                raise RedisError("Redis refused what the rules let in.")
        except (RedisError, DatabaseError) as error:
            self.leases.leave_behind(lease)  # Redis may have taken it all the same
            logger.warning("The limits of an API key could not be looked at, its request is refused: %s", _said(error))
            raise LimitsUnavailable() from error
        is_held = key.concurrent_generations is not None
        if is_held:
            self.leases.take(lease)
        return Admission(standing_of(key, counts, taken=1), lease if is_held else None)

    def give_back(self, admission: Admission) -> None:
        if isinstance(admission.held, Lease):
            self.leases.give_back(admission.held)

    def standing(self, key: APIKey) -> Standing:
        if key.requests_per_minute is None and key.tokens_per_day is None:
            return Standing()
        try:
            _, counts = self._count(key, Lease(_name(key, "leases"), ""), 0)
        except (RedisError, DatabaseError) as error:
            logger.warning("The limits of an API key could not be looked at: %s", _said(error))
            return Standing()
        return standing_of(key, counts, taken=0)

    def used(self, key: APIKey, day: date) -> None:
        try:
            self._tell_tokens(key, day)
        except (RedisError, DatabaseError) as error:
            logger.warning("What an API key used could not be told to Redis, which asks for it soon: %s", _said(error))

    def _count(self, key: APIKey, lease: Lease, generations: int) -> tuple[bool, Counts]:
        """Whether the request was let in, and the counts before it. Raises RedisError and DatabaseError."""
        for _ in range(3):  # it may be midnight between the first two
            left_behind = self.leases.left_behind(lease.key)
            taken, now, requests, newest, leaving, running, tokens = self._admit(
                keys=[_name(key, "requests"), lease.key, _name(key, "tokens")],
                args=[
                    "" if self._clock is None else microseconds(self._clock()),
                    *(_length(WINDOW), self.leases.length, _length(YOUNG)),
                    *(-1 if limit is None else limit for limit in _limits(key)),
                    generations,
                    lease.id,
                    *left_behind,
                ],
            )
            self.leases.ended(lease.key, left_behind)
            at = _moment(now)
            if tokens >= 0:
                return bool(taken), Counts(at, requests, _found(newest), _found(leaving), running, tokens)
            self._tell_tokens(key, day_of(at))
        raise RedisError("Redis forgets what it is told.")

    def _tell_tokens(self, key: APIKey, day: date) -> None:
        self._tell(
            keys=[_name(key, "tokens")],
            args=[
                "" if self._clock is None else microseconds(self._clock()),
                _length(YOUNG),
                (day - _EPOCH.date()).days,
                tokens_used(key.pk, day),
            ],
        )


def _name(key: APIKey, what: str) -> str:
    # The braces keep a key's entries together where Redis is a cluster.
    return f"meshnet:limits:{{{key.prefix}}}:{what}"


def _limits(key: APIKey) -> tuple[int | None, int | None, int | None]:
    return key.requests_per_minute, key.concurrent_generations, key.tokens_per_day


def _length(time: timedelta) -> int:
    return time // timedelta(microseconds=1)


def _moment(time: int) -> datetime:
    return _EPOCH + timedelta(microseconds=time)


def _found(time: int) -> datetime | None:
    return None if time < 0 else _moment(time)


def _said(error: Any) -> str:
    """In one line. Errors of redis-py name host and port, never the password."""
    return f"{type(error).__name__}: {error}"
