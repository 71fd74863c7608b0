"""Leases of running generations in Redis: held by this process, renewed while they are, and gone with it.

A process that is killed renews nothing, and what it held is free LEASE later. One whose Redis lost everything, or was
out of reach for long, writes its leases anew with the next renewal.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.conf import settings
from django.utils import timezone
from redis import Redis
from redis.exceptions import RedisError

from generation.keeper import SILENT_AFTER
from generation.limits_scripts import RENEW

logger = logging.getLogger(__name__)

#: As long as a silent head worker is taken for alive.
LEASE = SILENT_AFTER
RENEW_SECONDS = 5.0


@dataclass(frozen=True)
class Lease:
    """`key`: the entry of Redis that it stands in. `id` ends in how many generations it holds."""

    key: str
    id: str


class Leases:
    """One per process; any thread may use it. A thread of its own renews, only while there is something to renew."""

    def __init__(self, redis: Redis, clock: Callable[[], datetime] | None = None) -> None:
        self._redis = redis
        self._clock = clock
        self._renew = redis.register_script(RENEW)
        #: With the moment until which each is renewed.
        self._held: dict[Lease, datetime] = {}
        #: Given back, and Redis may not know it yet; with the moment at which they have ended by themselves.
        self._left_behind: dict[Lease, datetime] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def length(self) -> int:
        """Of a lease, in microseconds."""
        return LEASE // timedelta(microseconds=1)

    def take(self, lease: Lease) -> None:
        """Redis has written it; from here on it is renewed."""
        with self._lock:
            # No generation takes longer than this, so that nothing is held for ever by a worker that lost count.
            self._held[lease] = self._now() + timedelta(seconds=settings.MESHNET_GENERATION_SECONDS)
            self._look_after()

    def leave_behind(self, lease: Lease) -> None:
        """Redis may have written it or not, and is to forget it."""
        with self._lock:
            self._left_behind[lease] = self._now() + LEASE
            self._look_after()

    def give_back(self, lease: Lease) -> None:
        """Never raises; the second time nothing happens. What Redis cannot be told now, it is told later."""
        with self._lock:
            if self._held.pop(lease, None) is None:
                return
            self._left_behind[lease] = self._now() + LEASE
        try:
            self._end([lease])
        except RedisError as error:
            logger.warning("What a request of an API key held could not be given back yet: %s", error)

    def left_behind(self, key: str) -> list[str]:
        """Ids of leases in this entry that Redis is still to be told of."""
        with self._lock:
            return [lease.id for lease in self._left_behind if lease.key == key]

    def ended(self, key: str, ids: Collection[str]) -> None:
        """Redis was told."""
        with self._lock:
            for id_ in ids:
                self._left_behind.pop(Lease(key, id_), None)

    def renew(self) -> None:
        """One round. Raises RedisError."""
        now = self._now()
        with self._lock:
            held = [lease for lease, until in self._held.items() if now < until]
            self._left_behind = {lease: end for lease, end in self._left_behind.items() if now < end}
        if held:
            at = "" if self._clock is None else microseconds(now)
            self._renew(keys=[lease.key for lease in held], args=[at, self.length, *(lease.id for lease in held)])
        with self._lock:
            # Given back while the renewal was on its way: it may have come to life again.
            self._left_behind |= {lease: now + LEASE for lease in held if lease not in self._held}
            gone = list(self._left_behind)
        if gone:
            self._end(gone)

    def _end(self, leases: Collection[Lease]) -> None:
        """Raises RedisError."""
        pipeline = self._redis.pipeline(transaction=False)
        for lease in leases:
            pipeline.zrem(lease.key, lease.id)
        pipeline.execute()
        with self._lock:
            for lease in leases:
                self._left_behind.pop(lease, None)

    def _now(self) -> datetime:
        return (self._clock or timezone.now)()

    def _look_after(self) -> None:
        """Under the lock. Tests with a clock of their own say themselves when it is time."""
        if self._thread is None and self._clock is None:
            self._thread = threading.Thread(target=self._run, name="meshnet-leases", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        never = threading.Event()
        while True:
            never.wait(RENEW_SECONDS)
            with self._lock:
                if not self._held and not self._left_behind:
                    self._thread = None
                    return
            try:
                self.renew()
            except RedisError as error:
                logger.warning("Running generations of API keys could not be renewed: %s", error)
            except Exception:  # the next round must come
                logger.exception("A renewal failed.")


def microseconds(moment: datetime) -> int:
    """Since 1970."""
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
