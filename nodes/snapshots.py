"""The snapshots that all pages of one process share: asked for at most every two seconds, by one page at a time. Where
heads share a cache (`shared_snapshots`), so do all their workers.

What a silent node said last is kept, so that pages can show it greyed with its age. Nothing here is the truth about
the mesh: each process of a head remembers what it heard itself, and the keeper's looks keep that young.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from nodes import live
from nodes.client import NodeClient
from nodes.live import NodeSnapshot
from nodes.pace import Mark, NodePace, mark_of, pace_of

if TYPE_CHECKING:
    from nodes.shared_snapshots import SharedSnapshots

#: A look is answered from the last one until that is so old, in seconds.
FRESH_SECONDS = 2.0
#: Rates are taken over the looks of the last so many seconds.
PACE_SECONDS = 60.0
REMEMBERED_MARKS = 16


@dataclass(frozen=True)
class SeenNode:
    """One node as a page shows it. `now` is its last snapshot, with its error if it was silent.

    `known` is the same with the gaps filled from what the node said before, `age` how many seconds ago it said the
    oldest part of that: None when it was never heard. `asked_ago` is how many seconds ago this process itself asked for
    `now`: None when that is what another worker wrote into the shared cache.
    """

    now: NodeSnapshot
    known: NodeSnapshot
    age: float | None
    pace: NodePace | None
    asked_ago: float | None = None

    @property
    def url(self) -> str:
        return self.now.url

    @property
    def is_stale(self) -> bool:
        """Whether a part of what is shown was not said just now."""
        return self.now.status is None or self.now.sessions is None


@dataclass
class _Memory:
    """What one node said last, and when that was asked for."""

    status: dict[str, Any] | None = None
    status_at: float = 0.0
    sessions: dict[str, Any] | None = None
    sessions_at: float = 0.0
    marks: deque[Mark] = field(default_factory=lambda: deque(maxlen=REMEMBERED_MARKS))


class _Flight:
    """One fetch of all nodes. `snapshots` are there once `done` is set, unless the fetch failed."""

    def __init__(self, urls: tuple[str, ...], era: str | None) -> None:
        self.urls = urls
        self.era = era
        self.done = threading.Event()
        self.asked_at = self.landed_at = 0.0
        self.snapshots: list[NodeSnapshot] | None = None
        #: Which nodes this process asked itself.
        self.own: frozenset[str] = frozenset()


class SnapshotCache:
    """One per process, on the app's config. Any thread may look; `clock` is monotonic, `fetch` asks the nodes."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        fetch: Callable[[Sequence[NodeClient]], list[NodeSnapshot]] = live.fetch,
        shared: SharedSnapshots | None = None,
    ) -> None:
        self._clock = clock
        self._fetch = fetch
        self._shared = shared
        self._lock = threading.Lock()
        self._flight: _Flight | None = None
        self._memory: dict[str, _Memory] = {}

    def look(self, clients: Sequence[NodeClient]) -> list[SeenNode]:
        """All nodes in the order of `clients`, within the fetch's deadline. Who looks meanwhile shares the fetch."""
        flight = self._landed(clients)
        with self._lock:
            return [self._seen(snapshot, flight) for snapshot in flight.snapshots or ()]

    def snapshots(self, clients: Sequence[NodeClient]) -> list[NodeSnapshot]:
        """What the nodes say, at most FRESH_SECONDS old."""
        return self._landed(clients).snapshots or []

    def _landed(self, clients: Sequence[NodeClient]) -> _Flight:
        """A fetch that succeeded, at most FRESH_SECONDS ago."""
        urls = tuple(client.url for client in clients)
        era = None if self._shared is None else self._shared.era()
        while True:
            with self._lock:
                flight, leads = self._flight, False
                if flight is None or flight.urls != urls or flight.era != era or self._is_old(flight):
                    flight, leads = _Flight(urls, era), True
                    self._flight = flight
            if leads:
                self._fly(flight, clients)
            flight.done.wait()
            if flight.snapshots is not None:
                return flight

    def forget(self) -> None:
        """Something was just changed on the nodes: the next look asks them, whoever may still be asking."""
        with self._lock:
            self._flight = None
        if self._shared is not None:
            self._shared.begin_era()

    def _is_old(self, flight: _Flight) -> bool:
        # A fetch under way is young; one that failed is as good as none.
        if not flight.done.is_set():
            return False
        return flight.snapshots is None or self._clock() - flight.landed_at >= FRESH_SECONDS

    def _fly(self, flight: _Flight, clients: Sequence[NodeClient]) -> None:
        flight.asked_at = self._clock()
        try:
            if self._shared is None or flight.era is None:
                snapshots = self._fetch(clients)
                ages, own = [0.0] * len(snapshots), flight.urls
            else:
                seen = self._shared.fetch(clients, flight.era, self._fetch)
                snapshots, ages = [one.snapshot for one in seen], [one.age for one in seen]
                own = tuple(one.snapshot.url for one in seen if one.is_own)
            with self._lock:
                for snapshot, age in zip(snapshots, ages, strict=True):
                    self._remember(snapshot, flight.asked_at - age)
                for url in set(self._memory) - set(flight.urls):
                    del self._memory[url]
                flight.landed_at = self._clock() - max(ages, default=0.0)
                flight.snapshots, flight.own = snapshots, frozenset(own)
        finally:
            flight.done.set()

    # -- under the lock

    def _remember(self, snapshot: NodeSnapshot, asked_at: float) -> None:
        memory = self._memory.setdefault(snapshot.url, _Memory())
        if snapshot.status is not None:
            if (memory.status or {}).get("boot_id") != snapshot.status.get("boot_id"):
                memory.sessions = None  # of the node's last life
                memory.marks.clear()
            memory.status, memory.status_at = snapshot.status, asked_at
            mark = mark_of(snapshot.status, asked_at)
            if mark is not None:
                memory.marks.append(mark)
        if snapshot.sessions is not None:
            memory.sessions, memory.sessions_at = snapshot.sessions, asked_at

    def _seen(self, snapshot: NodeSnapshot, flight: _Flight) -> SeenNode:
        memory = self._memory.get(snapshot.url, _Memory())
        heard = [
            at
            for at, part in ((memory.status_at, memory.status), (memory.sessions_at, memory.sessions))
            if part is not None
        ]
        now = self._clock()
        return SeenNode(
            now=snapshot,
            known=replace(
                snapshot,
                status=snapshot.status or memory.status,
                sessions=snapshot.sessions or memory.sessions,
            ),
            age=now - min(heard) if heard else None,
            pace=pace_of(memory.marks, since=now - PACE_SECONDS),
            asked_ago=now - flight.asked_at if snapshot.url in flight.own else None,
        )
