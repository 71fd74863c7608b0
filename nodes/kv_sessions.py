"""The session store of a node: which generation's cache is held, for how long, and what makes room for what.

Knows nothing of tensors or HTTP: a cache is anything with `tokens` and `nbytes()`. Safe to call from any thread; the
caches themselves are touched only by the engine's thread, between `begin` and `done` of an entry.

Life of an entry: `open` (prefill) or `take` (decode) marks it in use on the request's thread; on the engine's thread
`begin` checks that it still is what the step expects, then `commit` or `fail`; `done` ends the use. Leaving the
table (replaced, evicted, released, expired) is *detaching*: a step that runs finishes on the detached object, a step
that still waits gets a miss, and the entry never returns.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from nodes.errors import Busy, ComputeFailed, KVCacheMiss, PayloadTooLarge, Released
from nodes.kv_statistics import EvictionReason, MissReason, StoreStatistics
from nodes.layers import LayerRange

#: A released id is remembered for so long: a late prefill or step must not bring it back to life.
TOMBSTONE_SECONDS = 60.0


class Cache(Protocol):
    """What the store must know of a cache."""

    tokens: int

    def nbytes(self) -> int: ...


@dataclass
class SessionCacheEntry:
    """One session on this node. Changed by the store under its lock; `cache` by the engine's thread alone."""

    session_id: str
    layers: LayerRange
    cache: Cache
    created: float
    created_at: float
    last_used: float
    nbytes: int = 0
    past_len: int = 0
    hits: int = 0
    in_use: int = 0
    #: Bytes that its queued steps will hold. Until they end it claims these, or what it holds when that is more.
    promised: int = 0
    detached: EvictionReason | None = None

    @property
    def claim(self) -> int:
        """What it counts against the byte budget, in bytes."""
        return max(self.nbytes, self.promised)


@dataclass(frozen=True)
class StoreLimits:
    """Seconds, sessions and bytes. A session idle for longer than `ttl_seconds` expires."""

    ttl_seconds: float = 600.0
    max_sessions: int = 8
    max_bytes: int = 2 * 1024**3
    active_seconds: float = 10.0

    def as_json(self) -> dict[str, float]:
        return {
            "ttl_seconds": self.ttl_seconds,
            "max_sessions": self.max_sessions,
            "max_bytes": self.max_bytes,
            "active_seconds": self.active_seconds,
        }


class SessionCacheStore:
    """TTL, LRU cap and byte budget over the sessions of one shard.

    To make room only entries that are neither in use nor active (stepped within `active_seconds`) are taken, so that
    more chats than slots wait instead of evicting each other for ever. `clock` is monotonic seconds, `wall` only
    labels entries for people.
    """

    def __init__(
        self,
        limits: StoreLimits,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._wall = wall
        self._lock = threading.RLock()
        self._entries: OrderedDict[str, SessionCacheEntry] = OrderedDict()  # least recently used first
        self._detached: list[SessionCacheEntry] = []  # out of the table, but a step still runs on them
        self._tombstones: OrderedDict[str, float] = OrderedDict()
        self._statistics = StoreStatistics()

    # -- steps

    def open(self, session_id: str, layers: LayerRange, new_cache: Callable[[], Cache], expect_bytes: int) -> Any:
        """A fresh entry for a prefill, in use; replaces what was under that id in one step.

        expect_bytes is what the prompt will need. Raises Busy when no room can be made, PayloadTooLarge when it
        could never be, Released when the id was released a moment ago; and then changes nothing.
        """
        with self._lock:
            self._expire()
            self._refuse_released(session_id)
            old = self._entries.get(session_id)
            # What `old` holds goes away with it, unless a step still runs on it.
            goes = old.claim if old is not None and not old.in_use else 0
            self._make_room(old, slots=0 if old else 1, need=expect_bytes, goes=goes)
            if old is not None:
                self._detach(old, "replaced")
            now = self._clock()
            entry = SessionCacheEntry(session_id, layers, new_cache(), now, self._wall(), now, in_use=1)
            entry.promised = expect_bytes
            self._entries[session_id] = entry
            self._statistics.prefills += 1
            self._see()
            return entry

    def take(self, session_id: str, past_len: int, expect_bytes: int = 0) -> SessionCacheEntry:
        """The entry that a decode continues, in use. Raises KVCacheMiss (unknown_session) or Released.

        For a further piece of a prompt expect_bytes says what it will need: room is made as in `open`, with the
        same errors. A single token is always taken: an answer that runs is not stopped for a few bytes.
        """
        with self._lock:
            self._expire()
            self._refuse_released(session_id)
            entry = self._entries.get(session_id)
            if entry is None:
                raise self._miss("unknown_session", past_len, 0)
            if expect_bytes and entry.past_len == past_len:  # else `begin` answers with a miss, which changes nothing
                need = entry.nbytes + expect_bytes
                self._make_room(entry, slots=0, need=need, goes=entry.claim)
                entry.promised = max(entry.promised, need)
            entry.in_use += 1
            return entry

    def begin(self, entry: SessionCacheEntry, layers: LayerRange, past_len: int | None) -> None:
        """On the engine's thread, right before a step runs; past_len None is a prefill.

        Only here is a decode compared with what is held: steps that were queued before it have run by now. Raises
        KVCacheMiss, Released when the session ended while the step waited, or ComputeFailed for a prefill whose cache
        another step has spoiled; changes nothing then.
        """
        with self._lock:
            if entry.detached is not None:
                self._refuse_released(entry.session_id)
                if past_len is None and entry.detached == "replaced":
                    raise Released("A later prefill of this session took this one's place; nobody waits for it.")
                if past_len is None and entry.detached == "error":
                    # Steps of a session run in the order of their coming, so that none should have come before it.
                    raise ComputeFailed("Another step of this session failed half-way before its prefill ran.")
            if past_len is None:
                return
            held = entry.past_len
            if entry.detached is not None:
                raise self._miss("unknown_session", past_len, 0)
            if entry.layers.start != layers.start:
                raise self._miss("start_layer_mismatch", past_len, held)
            if entry.layers.end != layers.end:
                raise self._miss("layer_range_mismatch", past_len, held)
            if held != past_len:
                raise self._miss("past_len_mismatch", past_len, held)
            entry.hits += 1
            self._statistics.hits += 1

    def commit(self, entry: SessionCacheEntry) -> int:
        """After a step succeeded: takes over the cache's length and bytes. Returns the tokens now held."""
        nbytes = entry.cache.nbytes()
        with self._lock:
            entry.past_len = entry.cache.tokens
            entry.nbytes = nbytes
            self._touch(entry)
            self._see()
            return entry.past_len

    def fail(self, entry: SessionCacheEntry) -> None:
        """After a step failed half-way: the cache's layers may have unequal lengths, so the entry is dropped."""
        with self._lock:
            self._detach(entry, "error")

    def done(self, entry: SessionCacheEntry) -> None:
        """Ends one use; to be called exactly once for each `open` and `take`."""
        with self._lock:
            entry.in_use -= 1
            if entry.in_use == 0:
                entry.promised = 0
                if entry.detached is not None:
                    self._detached = [other for other in self._detached if other is not entry]
            self._shrink()

    def caching_disabled(self, past_len: int) -> KVCacheMiss:
        """The miss for a decode to a node that does not cache; counts it."""
        with self._lock:
            return self._miss("caching_disabled", past_len, 0)

    # -- evictions

    def release(self, session_id: str) -> bool:
        """The head is done with a session. Remembers the id, so that nothing late revives it."""
        with self._lock:
            self._tombstones[session_id] = self._clock()
            self._tombstones.move_to_end(session_id)
            entry = self._entries.get(session_id)
            if entry is not None:
                self._detach(entry, "released")
            return entry is not None

    def evict(self, session_ids: Iterable[str], by: EvictionReason = "operator") -> tuple[list[str], list[str]]:
        """Takes sessions away, also running ones; their ids may come again. Returns (evicted, unknown)."""
        evicted: list[str] = []
        unknown: list[str] = []
        with self._lock:
            self._expire()
            for session_id in dict.fromkeys(session_ids):
                entry = self._entries.get(session_id)
                if entry is None:
                    unknown.append(session_id)
                else:
                    self._detach(entry, by)
                    evicted.append(session_id)
        return evicted, unknown

    def evict_idle(self, longer_than: float) -> list[str]:
        """An operator takes all sessions that no step uses and that were idle for more than so many seconds."""
        with self._lock:
            horizon = self._clock() - longer_than
            ids = [e.session_id for e in self._entries.values() if not e.in_use and e.last_used < horizon]
            return self.evict(ids)[0]

    def evict_all(self) -> list[str]:
        """An operator takes every session, also running ones."""
        with self._lock:
            return self.evict(list(self._entries))[0]

    def sweep(self) -> None:
        """What the sweeper does without traffic: expiry, byte budget, old tombstones."""
        with self._lock:
            self._expire()
            self._shrink()
            horizon = self._clock() - TOMBSTONE_SECONDS
            while self._tombstones and next(iter(self._tombstones.values())) < horizon:
                self._tombstones.popitem(last=False)

    def set_limits(self, limits: StoreLimits) -> None:
        """New limits for a running store. Lowered ones take idle sessions only; the rest shrinks as sessions end."""
        with self._lock:
            self._limits = limits
            self._expire()
            excess = len(self._entries) - limits.max_sessions
            for entry in self._victims()[: max(0, excess)]:
                self._detach(entry, "lru")
            self._shrink()

    # -- looking

    @property
    def limits(self) -> StoreLimits:
        return self._limits

    def count(self) -> int:
        """Sessions in the table."""
        with self._lock:
            return len(self._entries)

    def count_active(self) -> int:
        """How many of them a generation is working with: those that no other generation can take the slot of."""
        with self._lock:
            return len(self._entries) - len(self._victims())

    def snapshot(self) -> dict[str, Any]:
        """Limits, statistics and sessions as `/sessions` shows them; expired sessions do not show."""
        with self._lock:
            self._expire()
            now = self._clock()
            return {
                "limits": self._limits.as_json(),
                "stats": {
                    "sessions": len(self._entries),
                    "bytes": self._bytes(),
                    **self._statistics.as_json(),
                },
                "sessions": [self._row(entry, now) for entry in reversed(self._entries.values())],
            }

    def check_integrity(self) -> None:
        """Raises AssertionError when the store contradicts itself. For tests and debugging."""
        with self._lock:
            for session_id, entry in self._entries.items():
                if entry.session_id != session_id or entry.detached is not None or entry.in_use < 0:
                    raise AssertionError(f"entry {session_id} is in the table but {entry}")
                # The cache of an entry in use belongs to the engine's thread: only the others may be looked into.
                if not entry.in_use and (entry.past_len, entry.nbytes) != (entry.cache.tokens, entry.cache.nbytes()):
                    raise AssertionError(f"{entry} says something else than its cache")
                if not entry.in_use and entry.promised:
                    raise AssertionError(f"{entry} claims bytes for steps that ended")
            for entry in self._detached:
                if entry.detached is None or entry.in_use < 1:
                    raise AssertionError(f"{entry} is kept although no step runs on it")
            order = [entry.last_used for entry in self._entries.values()]
            if order != sorted(order):
                raise AssertionError("the table is not in the order of use")
            statistics = self._statistics
            if statistics.prefills != len(self._entries) + sum(statistics.evictions.values()):
                raise AssertionError(f"not every session that left was counted once: {statistics}")
            if len(order) > statistics.high_water_sessions or self._bytes() > statistics.high_water_bytes:
                raise AssertionError(f"the table holds more than the most ever held: {statistics}")

    def _row(self, entry: SessionCacheEntry, now: float) -> dict[str, Any]:
        idle = now - entry.last_used
        return {
            "id": entry.session_id,
            "layers": str(entry.layers),
            "past_len": entry.past_len,
            "bytes": entry.nbytes,
            "created_at": entry.created_at,
            "age_seconds": round(now - entry.created, 3),
            "idle_seconds": round(idle, 3),
            "expires_in_seconds": round(max(0.0, self._limits.ttl_seconds - idle), 3),
            "hits": entry.hits,
            "busy": entry.in_use > 0,
        }

    # -- under the lock

    def _bytes(self) -> int:
        """Bytes held, detached entries included until their step ends."""
        return sum(entry.nbytes for entry in (*self._entries.values(), *self._detached))

    def _see(self) -> None:
        self._statistics.see(len(self._entries), self._bytes())

    def _touch(self, entry: SessionCacheEntry) -> None:
        entry.last_used = self._clock()
        if entry.detached is None:
            self._entries.move_to_end(entry.session_id)

    def _miss(self, reason: MissReason, expected: int, held: int) -> KVCacheMiss:
        self._statistics.misses[reason] += 1
        return KVCacheMiss(
            f"The session's cache does not continue at {expected} tokens ({reason}); prefill again.",
            reason=reason,
            expected=expected,
            held=held,
        )

    def _refuse_released(self, session_id: str) -> None:
        released = self._tombstones.get(session_id)
        if released is not None and self._clock() - released < TOMBSTONE_SECONDS:
            raise Released()

    def _detach(self, entry: SessionCacheEntry, reason: EvictionReason) -> None:
        if entry.detached is not None:
            return
        entry.detached = reason
        del self._entries[entry.session_id]
        self._statistics.evictions[reason] += 1
        if entry.in_use:
            self._detached.append(entry)

    def _expire(self) -> None:
        horizon = self._clock() - self._limits.ttl_seconds
        for entry in list(self._entries.values()):
            if entry.last_used >= horizon:
                break  # in the order of use: the rest is younger
            if not entry.in_use:
                self._detach(entry, "ttl")

    def _victims(self, keep: SessionCacheEntry | None = None) -> list[SessionCacheEntry]:
        """What may be taken to make room, least recently used first."""
        horizon = self._clock() - self._limits.active_seconds
        return [
            entry
            for entry in self._entries.values()
            if entry is not keep and not entry.in_use and entry.last_used <= horizon
        ]

    def _make_room(self, keep: SessionCacheEntry | None, *, slots: int, need: int, goes: int) -> None:
        """Takes victims, never `keep`, until `slots` more sessions fit, and `need` bytes in place of `goes`.

        Counted are claims, not only bytes held: of prompts that arrive together each would find the budget free.

        Raises Busy, having taken none, when it cannot; PayloadTooLarge when it could not with the store to itself.
        """
        if need > self._limits.max_bytes:
            raise PayloadTooLarge(
                f"The text needs about {need} bytes of cache on this node, whose budget is {self._limits.max_bytes}: "
                "raise MESHNET_KV_MAX_BYTES."
            )
        victims = self._victims(keep)
        excess_sessions = max(0, len(self._entries) + slots - self._limits.max_sessions)
        taken: list[tuple[SessionCacheEntry, EvictionReason]] = [(entry, "lru") for entry in victims[:excess_sessions]]
        if excess_sessions > len(taken):
            raise Busy(f"All {self._limits.max_sessions} session slots are in use by running generations.")
        freed = sum(entry.nbytes for entry, _ in taken)
        claimed = sum(entry.claim for entry in (*self._entries.values(), *self._detached))
        excess_bytes = claimed - goes - freed + need - self._limits.max_bytes
        for entry in victims[len(taken) :]:
            if excess_bytes <= 0:
                break
            taken.append((entry, "bytes"))
            excess_bytes -= entry.nbytes
        if excess_bytes > 0:
            raise Busy(
                f"The text needs about {need} bytes of cache; {self._limits.max_bytes} are allowed on this node and "
                "running generations hold them."
            )
        for entry, reason in taken:
            self._detach(entry, reason)

    def _shrink(self) -> None:
        """Back under the byte budget after entries grew, as far as victims allow."""
        excess = self._bytes() - self._limits.max_bytes
        if excess <= 0:
            return
        for entry in self._victims():
            if excess <= 0:
                break
            excess -= entry.nbytes
            self._detach(entry, "bytes")
