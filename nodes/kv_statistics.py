"""Counters of the session store. Monotonic, so that a reader can take differences."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

MissReason = Literal[
    "unknown_session", "past_len_mismatch", "start_layer_mismatch", "layer_range_mismatch", "caching_disabled"
]
EvictionReason = Literal["ttl", "lru", "bytes", "operator", "released", "replaced", "error"]

MISS_REASONS: tuple[MissReason, ...] = (
    "unknown_session",
    "past_len_mismatch",
    "start_layer_mismatch",
    "layer_range_mismatch",
    "caching_disabled",
)
EVICTION_REASONS: tuple[EvictionReason, ...] = ("ttl", "lru", "bytes", "operator", "released", "replaced", "error")


@dataclass
class StoreStatistics:
    """Owned by the store and changed under its lock. A hit is a decode that found its cache."""

    hits: int = 0
    prefills: int = 0
    misses: dict[str, int] = field(default_factory=lambda: dict.fromkeys(MISS_REASONS, 0))
    evictions: dict[str, int] = field(default_factory=lambda: dict.fromkeys(EVICTION_REASONS, 0))
    high_water_sessions: int = 0
    high_water_bytes: int = 0

    def see(self, sessions: int, nbytes: int) -> None:
        self.high_water_sessions = max(self.high_water_sessions, sessions)
        self.high_water_bytes = max(self.high_water_bytes, nbytes)

    def as_json(self) -> dict[str, Any]:
        return {
            "hits": self.hits,
            "prefills": self.prefills,
            "misses": dict(self.misses),
            "evictions": dict(self.evictions),
            "high_water_sessions": self.high_water_sessions,
            "high_water_bytes": self.high_water_bytes,
        }
