"""Where limits of API keys are counted in tests: the database or a Redis, each with a clock that is told the time."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Protocol

from redis import Redis

from generation.limits import KeyLimits
from generation.limits_database import DatabaseKeyLimits
from generation.limits_leases import RENEW_SECONDS
from generation.limits_redis import RedisKeyLimits
from generation.models import APIKey, HeadWorker
from tests.unit.generation.wall_clock import WallClock

ME, OTHER = "boot-me", "boot-other"


class Counting(Protocol):
    wall: WallClock

    def worker(self, boot_id: str = ME) -> KeyLimits:
        """The limits as a further head worker counts them, which lives."""

    def advance(self, seconds: float) -> None:
        """Time passes, in which workers do what they do to live."""

    def kill(self, worker: KeyLimits) -> None:
        """It does nothing more."""


class InDatabase:
    def __init__(self) -> None:
        self.wall = WallClock()
        self._alive: dict[int, str] = {}

    def worker(self, boot_id: str = ME) -> KeyLimits:
        worker = DatabaseKeyLimits(self.wall)
        self._alive[id(worker)] = boot_id
        self._beat()
        return worker

    def advance(self, seconds: float) -> None:
        self.wall.advance(seconds)
        self._beat()

    def kill(self, worker: KeyLimits) -> None:
        del self._alive[id(worker)]

    def _beat(self) -> None:
        for boot_id in self._alive.values():
            lives(boot_id, self.wall.now)


class InRedis:
    def __init__(self, redis: Redis) -> None:
        self.wall = WallClock()
        self.redis = redis
        self._alive: list[RedisKeyLimits] = []

    def worker(self, boot_id: str = ME) -> KeyLimits:
        self._alive.append(RedisKeyLimits(self.redis, self.wall))
        return self._alive[-1]

    def advance(self, seconds: float) -> None:
        while seconds > 0:
            self.wall.advance(min(seconds, RENEW_SECONDS))
            seconds -= RENEW_SECONDS
            for worker in self._alive:
                worker.leases.renew()

    def kill(self, worker: KeyLimits) -> None:
        self._alive.remove(worker)  # type: ignore[arg-type]


def key(**fields: Any) -> APIKey:
    row: APIKey = APIKey.objects.create_key(name="app", **fields)[0]
    return row


def lives(boot_id: str, at: datetime) -> None:
    HeadWorker.objects.update_or_create(
        boot_id=boot_id, defaults={"hostname": "h", "pid": 1, "started_at": at, "beat_at": at}
    )
