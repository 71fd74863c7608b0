"""Limits of API keys counted in the database, which all workers and heads share; nothing else is needed to run.

For keys with limits only, one short transaction lets a request in (docs/decisions/0017-limits-by-the-database.md):

1. it locks the key's row (SQLite: the whole database, by IMMEDIATE), so that of two requests one looks second;
2. it counts the requests of the last 60 seconds, the generations that run, and the tokens of the day;
3. it writes a row for the request, and deletes old ones.

The row says how many generations it holds, until the answer has been made. A worker that dies holds none: its
HeadWorker row goes silent. Tokens are counted when a generation ends, so what runs at that moment may go over the
limit.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import date, datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import Error as DatabaseError
from django.db import connection, transaction
from django.db.models import Count, Max, Q, Sum
from django.utils import timezone

from generation.errors import LimitsUnavailable
from generation.keeper import SILENT_AFTER
from generation.key_usage import day_of, tokens_used
from generation.limits import WINDOW, Admission, Counts, Standing, refuse, standing_of
from generation.models import APIKey, HeadWorker, KeyRequest

logger = logging.getLogger(__name__)


class DatabaseKeyLimits:
    """See `generation.limits.KeyLimits`. Workers on several machines need clocks that agree within seconds."""

    def __init__(self, clock: Callable[[], datetime] = timezone.now) -> None:
        self._clock = clock
        #: Rows of this process whose answers are under way.
        self._held: set[int] = set()
        self._lock = threading.Lock()

    def admit(self, key: APIKey, *, owner: str, generations: int = 1) -> Admission:
        if not key.has_limits:
            return Admission(Standing())
        held: int | None = None
        try:
            with transaction.atomic():
                # As the row says now: an operator may have changed it. That it was deleted, the next request learns.
                key = APIKey.objects.select_for_update(no_key=True).filter(pk=key.pk).first() or key
                counts = self._counts(key, owner)
                refuse(key, counts, generations)
                if key.requests_per_minute is not None or key.concurrent_generations is not None:
                    held = self._take(key, counts, owner, generations)
            return Admission(standing_of(key, counts, taken=1), held)
        except DatabaseError as error:
            if held is not None:
                self._let_go(held)
            logger.exception("The limits of an API key could not be looked at: the request is refused.")
            raise LimitsUnavailable() from error

    def give_back(self, admission: Admission) -> None:
        if not isinstance(admission.held, int) or not self._let_go(admission.held):
            return
        try:
            KeyRequest.objects.filter(pk=admission.held).update(running=0)
        except DatabaseError:
            # The next request of this key that this process lets in sees that nobody holds it.
            logger.exception("What a request of an API key held could not be given back.")
        finally:
            if not connection.in_atomic_block:
                connection.close()

    def standing(self, key: APIKey) -> Standing:
        if key.requests_per_minute is None and key.tokens_per_day is None:
            return Standing()
        try:
            return standing_of(key, self._counts(key, ""), taken=0)
        except DatabaseError:
            logger.exception("The limits of an API key could not be looked at.")
            return Standing()

    def used(self, key: APIKey, day: date) -> None:
        """The row of the day is what counts."""

    # -- inside the transaction

    def _counts(self, key: APIKey, owner: str) -> Counts:
        now = self._clock()
        sums: dict[str, Any] = {"requests": 0, "newest": None, "running": None}
        if key.requests_per_minute is not None or key.concurrent_generations is not None:
            recent = Q(started_at__gt=now - WINDOW)
            sums = KeyRequest.objects.filter(api_key=key).aggregate(
                requests=Count("pk", filter=recent),
                newest=Max("started_at", filter=recent),
                running=Sum("running", filter=self._runs(now, owner)),
            )
        leaving = self._leaving(key, now, sums["requests"])
        tokens = 0 if key.tokens_per_day is None else tokens_used(key.pk, day_of(now))
        return Counts(now, sums["requests"], sums["newest"], leaving, sums["running"] or 0, tokens)

    def _leaving(self, key: APIKey, now: datetime, requests: int) -> datetime | None:
        """The request after whose leaving fewer than the limit lie in the window; None when that is so now."""
        if (limit := key.requests_per_minute) is None or requests < limit:
            return None
        recent = KeyRequest.objects.filter(api_key=key, started_at__gt=now - WINDOW).order_by("started_at")
        return recent.values_list("started_at", flat=True)[requests - limit]

    def _take(self, key: APIKey, counts: Counts, owner: str, generations: int) -> int | None:
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

    def _let_go(self, row_id: int) -> bool:
        with self._lock:
            was_held = row_id in self._held
            self._held.discard(row_id)
        return was_held
