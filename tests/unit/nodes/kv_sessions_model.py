"""What the session store must do, in a page: the model that test_kv_sessions_machine.py compares it with."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from nodes.kv_sessions import TOMBSTONE_SECONDS, SessionCacheEntry, StoreLimits
from nodes.layers import LayerRange
from tests.conftest import Clock

EXPECTED, REAL = 10, 12  # bytes a token: what a step announces is an estimate
LIMITS = (
    StoreLimits(ttl_seconds=60.0, max_sessions=3, max_bytes=30 * EXPECTED, active_seconds=10.0),
    StoreLimits(ttl_seconds=30.0, max_sessions=2, max_bytes=20 * EXPECTED, active_seconds=10.0),
)


class FakeCache:
    """A few bytes more than were announced."""

    def __init__(self) -> None:
        self.tokens = 0

    def nbytes(self) -> int:
        return REAL * self.tokens


@dataclass(eq=False)
class Held:
    """What the model knows of one session; `gone` says why it left."""

    name: str
    last_used: float
    tokens: int = 0
    promised: int = 0
    hits: int = 0
    in_use: int = 0
    gone: str | None = None

    @property
    def nbytes(self) -> int:
        return REAL * self.tokens

    @property
    def claim(self) -> int:
        return max(self.nbytes, self.promised)


@dataclass(eq=False)
class Step:
    """A step between its arrival and its end."""

    entry: SessionCacheEntry
    held: Held
    past_len: int | None
    size: int
    layers: LayerRange


@dataclass
class Model:
    """The store in plain words."""

    clock: Clock
    limits: StoreLimits
    live: dict[str, Held] = field(default_factory=dict)  # least recently used first
    tombstones: dict[str, float] = field(default_factory=dict)
    left: Counter[str] = field(default_factory=Counter)
    misses: Counter[str] = field(default_factory=Counter)
    hits: int = 0
    prefills: int = 0

    def leave(self, held: Held, reason: str) -> None:
        if held.gone is None:
            held.gone = reason
            del self.live[held.name]
            self.left[reason] += 1

    def expire(self) -> None:
        for held in list(self.live.values()):
            if not held.in_use and self.clock.now - held.last_used > self.limits.ttl_seconds:
                self.leave(held, "ttl")

    def is_released(self, name: str) -> bool:
        return self.clock.now - self.tombstones.get(name, float("-inf")) < TOMBSTONE_SECONDS

    def victims(self, keep: Held | None = None) -> list[Held]:
        return [
            held
            for held in self.live.values()
            if held is not keep and not held.in_use and self.clock.now - held.last_used >= self.limits.active_seconds
        ]

    def room(self, keep: Held | None, slots: int, claimed: int) -> list[tuple[Held, str]] | None:
        """Who goes, and why, until so many more sessions and bytes fit; None when that cannot be."""
        going: list[tuple[Held, str]] = []
        sessions = len(self.live) + slots
        for held in self.victims(keep):
            if sessions > self.limits.max_sessions:
                going.append((held, "lru"))
            elif claimed > self.limits.max_bytes:
                going.append((held, "bytes"))
            else:
                break
            sessions, claimed = sessions - 1, claimed - held.claim
        return going if sessions <= self.limits.max_sessions and claimed <= self.limits.max_bytes else None
