"""What goes wrong in a simulated mesh while it serves, and what each answer that it hit made of it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from meshsite.simulation.mesh import SimulatedMesh
from meshsite.simulation.node import SimulatedNode
from meshsite.simulation.series import percentile
from meshsite.simulation.traffic import Session, Traffic

#: A process that died, hung or was drained is back after so many seconds: started anew, loaded, proved.
RESTART_SECONDS = 40.0
#: A drained node waits for its answers no longer than this.
DRAIN_SECONDS = 120.0
POLL_SECONDS = 1.0


@dataclass
class Fault:
    """One event: which nodes it took, and the answers that ran there then."""

    kind: str
    at: float
    urls: frozenset[str]
    hit: list[Session] = field(default_factory=list)


class Faults:
    """Breaks nodes of a mesh at fixed shares of the time in which sessions come.

    `crash_share` of the nodes die one by one, each at another moment; one node hangs; a rack of `rack_share` goes
    silent at once; then `drained` nodes restart one after the other, each emptied first.
    """

    def __init__(self, mesh: SimulatedMesh, traffic: Traffic, seconds: float, *, drained: int = 10) -> None:
        self.faults: list[Fault] = []
        self.pushed_off = 0  # answers that a drained node had still at the end of its patience
        self._mesh = mesh
        self._traffic = traffic
        self._seconds = seconds
        self._drained = drained

    def schedule(self, *, crash_share: float = 0.01, rack_share: float = 0.1) -> None:
        mesh, rng = self._mesh, self._mesh.rng
        nodes = list(mesh.nodes)
        rng.shuffle(nodes)
        crashes = max(1, round(crash_share * len(nodes)))
        rack = max(1, round(rack_share * len(nodes)))
        for number in range(crashes):
            at = self._seconds * (0.2 + 0.3 * (number + rng.random()) / crashes)
            self._at(at, "crash", [nodes.pop()], "down")
        self._at(0.55 * self._seconds, "hang", [nodes.pop()], "silent")
        # Neighbours in the list hold neighbouring stretches: a rack has some of each.
        taken = {node.url for node in nodes[:rack]}
        self._at(0.65 * self._seconds, "rack", [node for node in mesh.nodes if node.url in taken], "silent")
        rolling = nodes[rack : rack + self._drained]
        mesh.time.call_at(0.8 * self._seconds, lambda: mesh.time.start(lambda: self._roll(rolling), "rolling restart"))

    def _at(self, at: float, kind: str, nodes: Sequence[SimulatedNode], life: Any) -> None:
        def strike() -> None:
            self._note(kind, nodes)
            for node in nodes:
                node.die(life)
                self._mesh.time.call_at(self._mesh.time.now() + RESTART_SECONDS, node.boot)

        self._mesh.time.call_at(at, strike)

    def _note(self, kind: str, nodes: Sequence[SimulatedNode]) -> None:
        urls = frozenset(node.url for node in nodes)
        fault = Fault(kind, self._mesh.time.now(), urls)
        for session in self._traffic.sessions:
            route = session.progress.route
            if session.end is None and route is not None and any(hop.url in urls for hop in route.hops):
                fault.hit.append(session)
        self.faults.append(fault)

    def _roll(self, nodes: Sequence[SimulatedNode]) -> None:
        time = self._mesh.time
        for node in nodes:
            self._note("drain", [node])
            node.is_draining = True
            give_up_at = time.now() + DRAIN_SECONDS
            while node.store.count() and time.now() < give_up_at:
                time.wait(POLL_SECONDS)
            self.pushed_off += node.store.count()
            node.is_leaving = True
            time.wait(POLL_SECONDS)
            node.die("down")
            time.wait(RESTART_SECONDS / 10)  # a rolling restart of a warm machine
            node.boot()


def recoveries(faults: Sequence[Fault]) -> list[dict[str, Any]]:
    """A row for each kind: the longest pause between two tokens that its answers had around it, and how they ended."""
    rows = []
    for kind in dict.fromkeys(fault.kind for fault in faults):
        mine = [fault for fault in faults if fault.kind == kind]
        hit = [(fault, session) for fault in mine for session in fault.hit]
        waits = [wait for fault, session in hit if (wait := pause_around(fault.at, session.token_times)) is not None]
        rows.append({
            "fault": kind,
            "times": len(mine),
            "nodes": sum(len(fault.urls) for fault in mine),
            "answers_hit": len(hit),
            "pause_p50": round(percentile(waits, 50), 2),
            "pause_p95": round(percentile(waits, 95), 2),
            "pause_max": round(max(waits, default=0.0), 2),
            "most_failovers": max((session.progress.failovers for _, session in hit), default=0),
            "lost": sum(session.end in ("lost", "wrong") for _, session in hit),
        })  # fmt: skip
    return rows


def pause_around(at: float, token_times: Sequence[float]) -> float | None:
    """The longer of the pauses before the first two tokens after this moment: the step under way then may have been
    past the node already. None when no token came any more.
    """
    after = bisect_right(token_times, at)
    if after == len(token_times):
        return None
    begin = max(1, after)
    gaps = [token_times[n] - token_times[n - 1] for n in range(begin, min(after + 2, len(token_times)))]
    return max(gaps, default=token_times[after] - at)
