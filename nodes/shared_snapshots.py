"""What the workers of all heads heard of the nodes last, in a cache that they share (MESHNET_CACHE_URL).

Only what a node said is shared, never that it was silent: another head may reach it. Entries live for as long as a look
is fresh, by the cache's own clock, and belong to an era: whoever changed something on the nodes begins a new one, in
which nothing is known that was asked for before. One worker asks while the others wait for what it hears.

A cache that is away or forgets costs the sharing and nothing else: each worker then asks for itself.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from django.core.cache.backends.base import BaseCache
from redis.exceptions import RedisError

from nodes import live
from nodes.client import NodeClient
from nodes.errors import NodeProtocolError
from nodes.live import FETCH_DEADLINE_SECONDS, NodeSnapshot

logger = logging.getLogger(__name__)

#: How long entries live, in whole seconds: as long as a look at the nodes is fresh.
FRESH_SECONDS = 2
#: How often those who wait look, and for how long: nodes answer in some milliseconds, or are asked by each worker.
LOOK_SECONDS = 0.02
PATIENCE_SECONDS = 0.5
#: Who asks is back by then.
LOCK_SECONDS = math.ceil(FETCH_DEADLINE_SECONDS) + 1
#: After a failure nobody tries for so long: a cache that swallows everything would delay each look by its timeout.
REST_SECONDS = 5.0

Fetch = Callable[[Sequence[NodeClient]], list[NodeSnapshot]]


class Seen(NamedTuple):
    """A snapshot, how many seconds ago its node was asked, and whether this process asked: then nobody else can have
    written it.
    """

    snapshot: NodeSnapshot
    age: float
    is_own: bool


class JsonSerializer:
    """For Django's cache: what is read from it can be data only."""

    def dumps(self, value: Any) -> bytes:
        return json.dumps(value, separators=(",", ":")).encode()

    def loads(self, data: bytes) -> Any:
        try:
            return json.loads(data)
        except RecursionError:
            raise ValueError("JSON that is nested too deeply.") from None


class SharedSnapshots:
    """One per process; any thread may use it. `clock` is the wall's, `monotonic` and `wait` are for waiting."""

    def __init__(
        self,
        cache: BaseCache,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self._cache = cache
        self._clock = clock
        self._monotonic = monotonic
        self._wait = wait
        self._rests_until = float("-inf")
        #: URLs of nodes that did not answer this process the last time.
        self._silent: set[str] = set()

    def era(self) -> str | None:
        """What is known belongs to it; None when that cannot be told."""
        era: str | None = self._try(lambda: self._cache.get("snapshots:era", "first"))
        return era

    def begin_era(self) -> None:
        """Nothing that was asked for before counts any more, in no worker of no head."""
        self._rests_until = float("-inf")  # whoever changed something shall see it, if the cache is back
        self._try(lambda: self._cache.set("snapshots:era", secrets.token_hex(8), None))

    def fetch(self, clients: Sequence[NodeClient], era: str, ask: Fetch) -> list[Seen]:
        """What the nodes say, in the order of `clients`.

        Asks those of which nobody knows, unless another worker is doing so. Nodes that were silent are asked last, so
        that nobody waits for them to hear of the others.
        """
        # A node in this very process has no address that another one could mean.
        names = {client.url: f"snapshots:{era}:{_digest(client.url)}" for client in clients if "//" in client.url}
        known = self._read(names)
        sought = [url for url in names if url not in known and url not in self._silent]
        if sought:
            lock = f"snapshots:{era}:asked-for:{_digest(*sought)}"
            is_mine = self._takes(lock)
            try:
                known |= self._read({url: names[url] for url in sought})  # by whoever has asked meanwhile
                known |= self._ask([one for one in clients if one.url in sought and one.url not in known], names, ask)
            finally:
                if is_mine:
                    self._try(lambda: self._cache.delete(lock))
        known |= self._ask([client for client in clients if client.url not in known], names, ask)
        return [known[client.url] for client in clients]

    def _takes(self, lock: str) -> bool:
        """Whether this worker is to ask. False once another one has, or took too long over it."""
        give_up_at = self._monotonic() + PATIENCE_SECONDS
        while True:
            if self._try(lambda: self._cache.add(lock, 1, LOCK_SECONDS)) is not False:
                return True
            self._wait(LOOK_SECONDS)
            if self._try(lambda: self._cache.get(lock)) is None or self._monotonic() >= give_up_at:
                return False

    def _ask(self, clients: Sequence[NodeClient], names: dict[str, str], ask: Fetch) -> dict[str, Seen]:
        if not clients:
            return {}
        at = self._clock()
        snapshots = ask(clients)
        entries = {}
        for snapshot in snapshots:
            is_whole = snapshot.error is None and snapshot.sessions is not None
            (self._silent.discard if is_whole else self._silent.add)(snapshot.url)
            if is_whole and snapshot.url in names:
                entries[names[snapshot.url]] = {
                    "at": at,
                    "status": snapshot.status,
                    "sessions": snapshot.sessions,
                }
        if entries:
            self._try(lambda: self._cache.set_many(entries, FRESH_SECONDS))
        return {snapshot.url: Seen(snapshot, 0.0, is_own=True) for snapshot in snapshots}

    def _read(self, names: dict[str, str]) -> dict[str, Seen]:
        found = self._try(lambda: self._cache.get_many(list(names.values()))) or {}
        now = self._clock()
        known = {}
        for url, name in names.items():
            if (entry := found.get(name)) is not None:
                try:
                    snapshot = live.snapshot_from(url, entry["status"], entry["sessions"])
                    # It is there, so it is fresh: clocks of heads that disagree can only blur by how much.
                    age = min(max(0.0, now - float(entry["at"])), float(FRESH_SECONDS))
                    known[url] = Seen(snapshot, age, is_own=False)
                except (KeyError, TypeError, ValueError, OverflowError, NodeProtocolError):
                    logger.warning("The shared cache holds something else than what a node said.")
        return known

    def _try(self, step: Callable[[], Any]) -> Any:
        """What the cache answers; None when it is away, or was just now."""
        if self._monotonic() < self._rests_until:
            return None
        try:
            return step()
        except (RedisError, ValueError) as error:  # redis-py names host and port, never the password
            self._rests_until = self._monotonic() + REST_SECONDS
            logger.warning("The shared cache is away, nodes are asked without it: %s: %s", type(error).__name__, error)
            return None


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
