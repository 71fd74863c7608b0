"""The nodes as a head worker knows them right now: what each last said, how fast it is, how loaded, who just failed.

A plan never waits for a node that is slow to answer while others are known well: news are asked for in the background
once they are older than FRESH_SECONDS (of many nodes somewhat older), and what a node said last counts until
STALE_SECONDS. A plan made on old news is repaired by the loop, which tells what it met (`failed`, `forget`, `full`).
"""

from __future__ import annotations

import logging
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from generation.errors import NoRoute
from generation.penalties import Penalties
from generation.route import Route, RouteNode
from generation.speeds import NodeSpeeds
from generation.threads import Event, SystemThreads, Threads
from nodes import live
from nodes.client import NodeClient
from nodes.errors import Busy, NotFound
from nodes.fleet import NodeFleet
from nodes.live import NodeSnapshot
from nodes.wire import Timings

if TYPE_CHECKING:
    from nodes.snapshots import SeenNode

logger = logging.getLogger(__name__)

#: What nodes said is asked for anew once it is so old, in seconds.
FRESH_SECONDS = 2.0
#: No worker asks more nodes a second than so many, unless one failed, after which the next plan wants to know who is
#: well: of more nodes than 400 the news may be older. An ask takes 0.4 ms of a core here, and more on the node. Of
#: 1,000 nodes with 0.9 of their slots taken, queues were 0.45 s on news of 5 s and 0.41 s on news of 2 s at the 95th
#: percentile (docs/scaling.md).
MOST_ASKED_A_SECOND = 200
LONGEST_FRESH_SECONDS = 7.5
#: What a node said last is believed for so long when it is silent, in seconds.
STALE_SECONDS = 15.0
#: Costs of a node of which nothing is known and nothing can be guessed from others, in milliseconds.
GUESSED_HOP_MS = 2.0
GUESSED_LAYER_MS = 1.0
#: A number that a node says of itself is not believed from here on: it would not fit into a sum of costs.
TOO_MUCH = 1_000_000_000
#: How long nothing is handed over between two nodes that did not reach each other: the first time, and at most. Each
#: try that fails costs a prefill. Less than it takes to forget faults in a row.
LINK_SECONDS = 10.0
LONGEST_LINK_SECONDS = 300.0


@dataclass(frozen=True)
class _News:
    """One node's last status. `own` is how many generations of this worker were on it when it was heard."""

    status: dict[str, Any]
    heard_at: float
    own: int
    #: As the status describes it, its costs not filled in; None when it takes no sessions or cannot be read. Read when
    #: it is heard, not for each plan: of a thousand nodes that takes milliseconds.
    node: RouteNode | None
    busy: int
    most: int | None
    layer_ms: float | None
    is_silent: bool = False
    #: It has refused a prefill since.
    is_full: bool = False


class NodeDirectory:
    """One per head worker; any thread may ask and tell."""

    def __init__(
        self,
        nodes: NodeFleet | Sequence[NodeClient],
        *,
        clock: Callable[[], float] = time.monotonic,
        fetch: Callable[[Sequence[NodeClient]], list[NodeSnapshot]] = lambda clients: live.fetch(
            clients, sessions=False
        ),
        threads: Threads | None = None,
    ) -> None:
        self.fleet = nodes if isinstance(nodes, NodeFleet) else NodeFleet(nodes)
        self._clock = clock
        self._fetch = fetch
        self._threads = threads or SystemThreads()
        self._lock = threading.Lock()
        self._news: dict[str, _News] = {}
        #: When what a node said was last found to be wrong.
        self._forgotten: dict[str, float] = {}
        self._asked_at = float("-inf")
        self._flight: _Flight | None = None
        self._begun = self._landed = 0  # numbers of fetches
        self._own: Counter[str] = Counter()
        #: What was planned with last, by URL: what it was made of, and the same with its costs.
        self._built: dict[str, tuple[RouteNode, tuple[float, float, int, bool, int], RouteNode]] = {}
        self._removed: frozenset[str] = frozenset()
        self._penalties = Penalties(clock=clock)
        self._links = Penalties(first_seconds=LINK_SECONDS, longest_seconds=LONGEST_LINK_SECONDS, clock=clock)
        self._speeds = NodeSpeeds(clock=clock)

    @property
    def clients(self) -> list[NodeClient]:
        """Of all nodes that are known now."""
        return list(self.fleet)

    def client(self, url: str) -> NodeClient:
        """Raises NoRoute for a node that this head does not know."""
        try:
            return self.fleet.client(url)
        except NotFound as error:
            raise NoRoute(error.detail) from None

    # -- who may be planned with

    def ready(self, *, fresh: bool = False, silent: bool = True) -> list[RouteNode]:
        """The nodes that take new sessions and that no operator removed, with what they cost.

        Returns at once with what is known, if anything is; `fresh` asks all nodes first. Without `silent` those that
        did not answer the last time are left out.
        """
        with self._lock:
            # What was asked before may have missed what the caller waits for; who knows nothing takes what comes.
            after = self._begun if fresh else self._landed
        self._look()
        found = [] if fresh else self._ready(silent)
        if not found:
            self._await(after)
            found = self._ready(silent)
        return found

    def learn_seen(self, nodes: Sequence[SeenNode]) -> None:
        """What this process's pages saw, as far as it asked for that itself: what others wrote into the shared cache
        makes no routes.
        """
        own = [(node.now, node.asked_ago) for node in nodes if node.asked_ago is not None]
        self.learn([snapshot for snapshot, _ in own], [ago for _, ago in own])

    def learn(self, snapshots: Sequence[NodeSnapshot], ages: Sequence[float] = ()) -> None:
        """What this process asked the nodes for elsewhere, so many seconds ago each; without `ages` just now.

        What is older than what is known here, or than the last time that the node was not what it had said, is left.
        """
        now = self._clock()
        with self._lock:
            for snapshot, age in zip(snapshots, ages or [0.0] * len(snapshots), strict=True):
                at, known = now - age, self._news.get(snapshot.url)
                if at >= self._forgotten.get(snapshot.url, at) and (known is None or known.heard_at <= at):
                    self._hear(snapshot, at)

    # -- what the loop met

    def measured(self, url: str, layers: int, tokens: int, total_ms: float, timings: Timings) -> None:
        """A step was answered."""
        self._speeds.add(url, layers, tokens, total_ms, timings)
        self._penalties.work(url)

    def expected_seconds(self, url: str, layers: int, tokens: int) -> float:
        return self._speeds.expected_seconds(url, layers, tokens)

    def failed(self, url: str) -> None:
        """A fault of the node's own: others are preferred for a while, the longer the more often it failed."""
        self._penalties.fail(url)
        self.forget(url)

    def forget(self, url: str) -> None:
        """What the node said of itself is not true any more: it is in no plan until it is heard again."""
        with self._lock:
            self._news.pop(url, None)
            self._forgotten[url] = self._clock()
            self._asked_at = float("-inf")

    def came(self, url: str) -> None:
        """A node has announced itself: one that is new here is asked before the next plan, not when news are due."""
        is_new = all(client.url != url for client in self.fleet)
        self.fleet.add(url)
        if is_new:
            with self._lock:
                self._asked_at = float("-inf")

    def gone(self, url: str) -> None:
        """A node said good-bye: it takes no new session."""
        self.fleet.drop(url)
        self.forget(url)

    def hears(self, url: str) -> bool:
        """Whether the node answered when it was asked last, and did not fail since."""
        with self._lock:
            one = self._news.get(url)
        return one is not None and not one.is_silent

    def full(self, url: str) -> None:
        """The node refused a prefill for want of a slot."""
        with self._lock:
            if url in self._news:
                self._news[url] = replace(self._news[url], is_full=True)

    # -- steps that nodes hand over to each other

    def hand_over(self, urls: Sequence[str]) -> list[str] | None:
        """The boot ids of these nodes, when they can hand over to each other in this order; None when they cannot.

        Every one must have said that it takes part, and no two neighbours have failed to reach each other lately.
        """
        with self._lock:
            news = [self._news.get(url) for url in urls]
        boot_ids = []
        for url, one in zip(urls, news, strict=True):
            boot_id = None if one is None else one.status.get("boot_id")
            if one is None or one.status.get("supports_handover") is not True or not isinstance(boot_id, str):
                return None
            if not hasattr(self.fleet.client(url), "result"):  # in this process: there is nobody to hand over to
                return None
            boot_ids.append(boot_id)
        return None if any(self._links.faults(link) for link in _links(urls)) else boot_ids

    def hand_over_failed(self, urls: Sequence[str], to: str) -> None:
        """The node before `to` in this order could not hand over to it, or its answer was none."""
        link = next(link for link, url in zip(_links(urls), urls, strict=True) if url == to)
        if not self._links.faults(link):  # else this is what other generations met too, not a further try
            self._links.fail(link)
        self._look()  # another process may answer there now, whose boot id is not known yet

    def handed_over(self, urls: Sequence[str]) -> None:
        """It worked, all the way."""
        for link in _links(urls):
            self._links.work(link)

    def take(self, route: Route) -> None:
        """A generation of this worker goes over these nodes from here on, until `leave`."""
        with self._lock:
            self._own.update(hop.url for hop in route.hops)

    def leave(self, route: Route) -> None:
        with self._lock:
            for hop in route.hops:
                self._own[hop.url] -= 1
                if self._own[hop.url] <= 0:
                    del self._own[hop.url]

    # -- operators

    def set_removed(self, urls: Collection[str]) -> None:
        """The nodes that an operator took out, as the keeper reads them; they are in no plan from here on."""
        self._removed = frozenset(urls)

    @property
    def removed(self) -> frozenset[str]:
        return self._removed

    # -- news

    def _look(self) -> None:
        """Asks the nodes in the background if the news are old."""
        now = self._clock()
        with self._lock:
            fresh_for = min(max(FRESH_SECONDS, len(self.fleet) / MOST_ASKED_A_SECOND), LONGEST_FRESH_SECONDS)
            if self._flight is None and self._asked_at < now - fresh_for:
                try:
                    self._begin(now)
                except Busy as error:  # what is known will do; the next one who looks tries again
                    logger.warning("%s", error.detail)

    def _await(self, after: int) -> None:
        """Returns when a fetch later than the first `after` ones has come back; begins one if none is under way."""
        while True:
            with self._lock:
                if self._landed > after:
                    return
                flight = self._flight or self._begin(self._clock())
            flight.landed.wait()

    def _begin(self, now: float) -> _Flight:
        """Under the lock, with no fetch under way. Raises Busy when the system has no thread left."""
        flight = _Flight(self._begun + 1, self._threads.event())
        try:
            self._threads.start(partial(self._fly, flight), "meshnet-directory")
        except RuntimeError as error:
            raise Busy(f"No thread to ask the nodes: {error}") from None
        self._asked_at, self._begun, self._flight = now, flight.number, flight
        return flight

    def _fly(self, flight: _Flight) -> None:
        clients = list(self.fleet)
        try:
            snapshots = self._fetch(clients)
            now = self._clock()
            with self._lock:
                for snapshot in snapshots:
                    self._hear(snapshot, now)
                urls = {client.url for client in clients}
                for url in set(self._news) - urls:
                    del self._news[url]
                # One that said good-bye is not among the news any more, but may still be here.
                for url in set(self._built) - urls:
                    del self._built[url]
                # What was said before that is believed no more, whether it is known to be wrong or not.
                self._forgotten = {url: at for url, at in self._forgotten.items() if at > now - STALE_SECONDS}
        except Exception:  # whoever waits is told by what is missing, and the next look tries again
            logger.exception("The nodes could not be asked.")
        finally:
            with self._lock:
                self._flight, self._landed = None, flight.number
            flight.landed.set()

    def _hear(self, snapshot: NodeSnapshot, now: float) -> None:
        """Under the lock."""
        known = self._news.get(snapshot.url)
        if snapshot.status is None:
            if known is not None:
                self._news[snapshot.url] = replace(known, is_silent=True)
            return
        if known is not None and known.status.get("boot_id") != snapshot.status.get("boot_id"):
            self._speeds.forget(snapshot.url)
        self._news[snapshot.url] = _News(
            snapshot.status,
            now,
            self._own[snapshot.url],
            node=RouteNode.from_status(snapshot.url, snapshot.status),
            busy=_count(snapshot.status.get("busy_sessions")),
            most=None if (most := _count(snapshot.status.get("max_sessions"), unknown=-1)) < 0 else most,
            layer_ms=_said_ms(snapshot.status),
        )

    def _ready(self, silent: bool) -> list[RouteNode]:
        now = self._clock()
        with self._lock:
            news = {
                url: one
                for url, one in self._news.items()
                if one.heard_at > now - STALE_SECONDS and url not in self._removed and (silent or not one.is_silent)
            }
            own = dict(self._own)
        measured, faults = self._speeds.known(), self._penalties.held()
        unknown = (None, None)
        hop_ms = {url: measured.get(url, unknown)[0] for url in news}
        # As this head measured it, else as the node says. A node that names no times counts as 0 once it was measured.
        layer_ms = {
            url: one.layer_ms if (ms := measured.get(url, unknown)[1]) is None else ms for url, one in news.items()
        }
        usual_hop, usual_layer = _usual(hop_ms.values(), GUESSED_HOP_MS), _usual(layer_ms.values(), GUESSED_LAYER_MS)
        found = []
        for client in list(self.fleet):
            url = client.url
            one = news.get(url)
            if one is None or one.node is None:
                continue
            known_hop, known_layer = hop_ms[url], layer_ms[url]
            # Of other workers as it was said, of this one as it is now.
            load = max(0, one.busy - one.own) + own.get(url, 0)
            costs = (
                usual_hop if known_hop is None else known_hop,
                usual_layer if known_layer is None else known_layer,
                load,
                one.is_full or (one.most is not None and load >= one.most),
                faults.get(url, 0) + one.is_silent,
            )
            built = self._built.get(url)
            if built is None or built[0] is not one.node or built[1] != costs:
                built = self._built[url] = (one.node, costs, one.node.at(*costs))
            found.append(built[2])
        return found


class _Flight:
    """One fetch under way; they are numbered from 1, and never two at once."""

    def __init__(self, number: int, landed: Event) -> None:
        self.number = number
        self.landed = landed


def _links(urls: Sequence[str]) -> list[str]:
    """One name for each node's way from the one before it; the first one's is from the head."""
    return [f"{before} {url}" for before, url in zip(["", *urls], urls, strict=False)]


def _usual(values: Collection[float | None], otherwise: float) -> float:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else otherwise


def _said_ms(status: dict[str, Any]) -> float | None:
    """What the node says that a layer takes it."""
    said = status.get("layer_ms")
    return float(said) if isinstance(said, int | float) and 0 < said < TOO_MUCH else None


def _count(value: Any, *, unknown: int = 0) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < TOO_MUCH else unknown
