"""The nodes as a head worker knows them right now: clients by URL, what they last said, and who just failed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence

from generation.errors import NoRoute
from generation.route import RouteNode
from nodes import live
from nodes.client import NodeClient

#: What a node said of itself is believed for so long, in seconds. A plan made on older news is repaired by the loop.
FRESH_SECONDS = 2.0
#: A node that failed is avoided for so long, in seconds.
SUSPECT_SECONDS = 10.0


class NodeDirectory:
    """Answers `ready()` from one shared fetch at a time; any thread may ask."""

    def __init__(self, clients: Sequence[NodeClient], *, clock: Callable[[], float] = time.monotonic) -> None:
        self.clients = list(clients)
        self._by_url = {client.url: client for client in self.clients}
        self._clock = clock
        self._lock = threading.Lock()
        self._fetched_at = float("-inf")
        self._snapshots: list[live.NodeSnapshot] = []
        self._suspects: dict[str, float] = {}
        self._removed: frozenset[str] = frozenset()

    def client(self, url: str) -> NodeClient:
        """Raises NoRoute for a node that this head does not know."""
        try:
            return self._by_url[url]
        except KeyError:
            raise NoRoute(f"{url} is not a node of this head.") from None

    def snapshots(self, *, fresh: bool = False) -> list[live.NodeSnapshot]:
        """What the nodes say, at most FRESH_SECONDS old; `fresh` asks them again. Concurrent callers share a fetch."""
        asked_at = self._clock()
        with self._lock:
            if self._fetched_at < (asked_at if fresh else asked_at - FRESH_SECONDS):
                self._snapshots = live.fetch(self.clients, sessions=False)
                self._fetched_at = self._clock()
            return self._snapshots

    def ready(self, *, fresh: bool = False) -> list[RouteNode]:
        """The nodes that take new sessions and that no operator removed."""
        found = (
            RouteNode.from_status(snapshot.url, snapshot.status)
            for snapshot in self.snapshots(fresh=fresh)
            if snapshot.status is not None and snapshot.url not in self._removed
        )
        return [node for node in found if node is not None]

    def set_removed(self, urls: Collection[str]) -> None:
        """The nodes that an operator took out, as the keeper reads them; they are in no plan from here on."""
        self._removed = frozenset(urls)

    @property
    def removed(self) -> frozenset[str]:
        return self._removed

    def suspect(self, url: str) -> None:
        """A node just failed: avoid it for a while."""
        self._suspects[url] = self._clock() + SUSPECT_SECONDS

    def suspects(self) -> set[str]:
        now = self._clock()
        return {url for url, until in list(self._suspects.items()) if until > now}
