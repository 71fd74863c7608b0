"""What an API key may still do, counted in the database, so that it holds over all workers and heads.

For keys with limits only, one short transaction lets a request in (docs/decisions/0017-limits-by-the-database.md):

1. it locks the key's row (SQLite: the whole database, by IMMEDIATE), so that of two requests one looks second;
2. it counts the requests of the last 60 seconds, the generations that run, and the tokens of the day;
3. it writes a row for the request, and deletes old ones.

The row says how many generations it holds, until the answer has been made. A worker that dies holds none: its
HeadWorker row goes silent. Tokens are counted when a generation ends, so what runs at that moment may go over the
limit. Workers on several machines need clocks that agree within seconds.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Any

from django.conf import settings
from django.db import Error as DatabaseError
from django.db import connection, transaction
from django.db.models import Count, Max, Q, Sum
from django.utils import timezone

from generation.errors import LimitsUnavailable, QuotaExceeded, RateLimitExceeded, RequestRefused
from generation.keeper import SILENT_AFTER
from generation.key_usage import day_of, tokens_used
from generation.models import APIKey, HeadWorker, KeyRequest

logger = logging.getLogger(__name__)

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
    """A request that was let in. `row_id` is None when nothing is held for it."""

    standing: Standing
    row_id: int | None = None


@dataclass(frozen=True)
class _Counts:
    """What a key's rows say at one moment."""

    now: datetime
    requests: int
    newest: datetime | None
    running: int
    tokens: int


class KeyLimits:
    """Lets requests of keys in and gives back what they hold. One per process; used by all its threads."""

    def __init__(self, clock: Callable[[], datetime] = timezone.now) -> None:
        self._clock = clock
        #: Rows of this process whose answers are under way.
        self._held: set[int] = set()
        self._lock = threading.Lock()

    def admit(self, key: APIKey, *, owner: str, generations: int = 1) -> Admission:
        """Lets in one request that asks for so many generations at once. `owner` is the worker's boot id.

        Raises RateLimitExceeded and QuotaExceeded, which carry the key's `standing`; RequestRefused when so many can
        never run at once; LimitsUnavailable when nothing can be counted. What was let in must be given back.
        """
        if not key.has_limits:
            return Admission(Standing())
        held: int | None = None
        try:
            with transaction.atomic():
                # As the row says now: an operator may have changed it. That it was deleted, the next request learns.
                key = APIKey.objects.select_for_update(no_key=True).filter(pk=key.pk).first() or key
                counts = self._counts(key, owner)
                self._refuse(key, counts, generations)
                if key.requests_per_minute is not None or key.concurrent_generations is not None:
                    held = self._take(key, counts, owner, generations)
            return Admission(_standing(key, counts, taken=1), held)
        except DatabaseError as error:
            if held is not None:
                self._let_go(held)
            logger.exception("The limits of an API key could not be looked at: the request is refused.")
            raise LimitsUnavailable() from error

    def give_back(self, admission: Admission) -> None:
        """The answer has been made, or failed. Never raises; the second time nothing happens."""
        if admission.row_id is None or not self._let_go(admission.row_id):
            return
        try:
            KeyRequest.objects.filter(pk=admission.row_id).update(running=0)
        except DatabaseError:
            # The next request of this key that this process lets in sees that nobody holds it.
            logger.exception("What a request of an API key held could not be given back.")
        finally:
            if not connection.in_atomic_block:
                connection.close()

    def standing(self, key: APIKey) -> Standing:
        """How the key stands now, for an answer that counts for nothing. Reads only; empty when it cannot."""
        if key.requests_per_minute is None and key.tokens_per_day is None:
            return Standing()
        try:
            return _standing(key, self._counts(key, ""), taken=0)
        except DatabaseError:
            logger.exception("The limits of an API key could not be looked at.")
            return Standing()

    # -- inside the transaction

    def _counts(self, key: APIKey, owner: str) -> _Counts:
        now = self._clock()
        sums: dict[str, Any] = {"requests": 0, "newest": None, "running": None}
        if key.requests_per_minute is not None or key.concurrent_generations is not None:
            recent = Q(started_at__gt=now - WINDOW)
            sums = KeyRequest.objects.filter(api_key=key).aggregate(
                requests=Count("pk", filter=recent),
                newest=Max("started_at", filter=recent),
                running=Sum("running", filter=self._runs(now, owner)),
            )
        tokens = 0 if key.tokens_per_day is None else tokens_used(key.pk, day_of(now))
        return _Counts(now, sums["requests"], sums["newest"], sums["running"] or 0, tokens)

    def _refuse(self, key: APIKey, counts: _Counts, generations: int) -> None:
        standing = _standing(key, counts, taken=0)
        most = key.concurrent_generations
        if most is not None and generations > most:
            raise RequestRefused(f"This API key may run {most} generations at once, not {generations}.", param="n")
        if key.tokens_per_day is not None and counts.tokens >= key.tokens_per_day:
            raise QuotaExceeded(
                f"This API key has used its {key.tokens_per_day} tokens of today (UTC).",
                retry_after=_seconds_left(counts.now),
                standing=standing,
            )
        if (limit := key.requests_per_minute) is not None and counts.requests >= limit:
            raise RateLimitExceeded(
                f"This API key may send {limit} requests per minute.",
                retry_after=self._until_one_leaves(key, counts, limit),
                standing=standing,
            )
        if most is not None and counts.running + generations > most:
            raise RateLimitExceeded(
                f"This API key may run {most} generations at once; {counts.running} are running.",
                retry_after=1,
                standing=standing,
            )

    def _take(self, key: APIKey, counts: _Counts, owner: str, generations: int) -> int | None:
        """Writes the request's row; its id if it holds anything."""
        of_key = KeyRequest.objects.filter(api_key=key)
        self._heal(of_key.filter(owner=owner))
        of_key.filter(started_at__lte=counts.now - WINDOW).exclude(self._runs(counts.now, owner)).delete()
        running = 0 if key.concurrent_generations is None else generations
        row = KeyRequest.objects.create(api_key=key, owner=owner, started_at=counts.now, running=running)
        if not running:
            return None
        with self._lock:  # before the commit: until then nobody else can take the row for one that was left behind
            self._held.add(row.pk)
        return row.pk

    def _heal(self, own: Any) -> None:
        """Of this process's rows, ends those whose giving back failed."""
        with self._lock:
            held = set(self._held)
        own.filter(running__gt=0).exclude(pk__in=held).update(running=0)

    def _runs(self, now: datetime, owner: str) -> Q:
        """Rows that still hold generations: those of this process that it holds, those of others that live."""
        with self._lock:
            held = set(self._held)
        alive = HeadWorker.objects.filter(beat_at__gt=now - SILENT_AFTER).values("boot_id")
        # No generation takes longer than this, so that nothing is held for ever by a worker that lost count.
        oldest = now - timedelta(seconds=settings.MESHNET_GENERATION_SECONDS) - SILENT_AFTER
        mine, others = Q(owner=owner, pk__in=held), ~Q(owner=owner) & Q(owner__in=alive)
        return Q(running__gt=0, started_at__gt=oldest) & (mine | others)

    def _until_one_leaves(self, key: APIKey, counts: _Counts, limit: int) -> int:
        """Whole seconds until fewer requests than the limit lie in the window, at least 1."""
        recent = KeyRequest.objects.filter(api_key=key, started_at__gt=counts.now - WINDOW).order_by("started_at")
        leaving = recent.values_list("started_at", flat=True)[counts.requests - limit]
        return _whole((leaving + WINDOW - counts.now).total_seconds())

    def _let_go(self, row_id: int) -> bool:
        with self._lock:
            was_held = row_id in self._held
            self._held.discard(row_id)
        return was_held


def _standing(key: APIKey, counts: _Counts, *, taken: int) -> Standing:
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
