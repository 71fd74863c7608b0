"""How a mesh serves at a share of what it can hold, well or while things go wrong: the numbers of one run."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from meshsite.simulation.cost import Texts
from meshsite.simulation.faults import Faults, recoveries
from meshsite.simulation.mesh import MeshSize, SimulatedMesh
from meshsite.simulation.series import percentile
from meshsite.simulation.traffic import Session, Traffic


@dataclass(frozen=True)
class Load:
    """So many sessions, arriving at `share` of the rate at which the mesh's slots are all taken."""

    share: float
    sessions: int
    block_tokens: int = 32
    with_faults: bool = False


class LoadRun:
    """One run; `numbers`, `traffic` and `mesh` can be looked into afterwards."""

    def __init__(self, load: Load, size: MeshSize, seed: int, *, texts: Texts | None = None) -> None:
        self.load = load
        self.texts = texts or Texts()
        cost = replace(size.cost, block_tokens=load.block_tokens)
        self.size = replace(size, cost=cost)
        self.mesh = SimulatedMesh(self.size, seed)
        self.per_second = load.share * self.size.mesh_slots / cost.answer_seconds(*self.texts.means())
        self.faults: Faults | None = None
        self.numbers: dict[str, Any] = {}

    def run(self, progress: Callable[[int], None] = lambda done: None) -> dict[str, Any]:
        begun = time.perf_counter()
        self.traffic = Traffic(self.mesh, self.load.sessions, self.per_second, self.texts, progress=progress)
        if self.load.with_faults:
            seconds = self.load.sessions / self.per_second
            self.faults = Faults(self.mesh, self.traffic, seconds)
            self.faults.schedule()
        self.traffic.run()
        self.numbers = self._numbers(time.perf_counter() - begun)
        return self.numbers

    def _numbers(self, real_seconds: float) -> dict[str, Any]:
        sessions, block = self.traffic.sessions, self.load.block_tokens
        served = [one for one in sessions if one.end == "served"]
        queued = [one.queued for one in served]
        first = [one.token_times[0] - one.arrived for one in served]
        seconds = self.traffic.seconds
        # In the later half of the time in which sessions came: it begins with empty nodes, and nothing follows its end.
        half = seconds / 2
        running = sum(
            max(0.0, min(one.token_times[-1], seconds) - max(one.arrived + one.queued, half)) for one in served
        )
        tokens = block * sum(
            bisect_right(one.token_times, seconds) - bisect_right(one.token_times, half) for one in sessions
        )
        prefilled = block * sum(node.prompt_blocks for node in self.mesh.nodes) / self.size.cost.stretches
        prompts = block * sum(one.prompt for one in served)
        found: dict[str, Any] = {
            "share": self.load.share,
            "sessions": len(sessions),
            "virtual_minutes": round(seconds / 60, 1),
            "slots": self.size.mesh_slots,
            "slots_taken_mean": round(running / (seconds - half), 1),
            "served": len(served),
            "refused": sum(one.end == "refused" for one in sessions),
            "lost": sum(one.end == "lost" for one in sessions),
            "wrong": sum(one.end == "wrong" for one in sessions),
            "queued_p50": round(percentile(queued, 50), 2),
            "queued_p95": round(percentile(queued, 95), 2),
            "queued_p99": round(percentile(queued, 99), 2),
            "queued_max": round(max(queued, default=0.0), 2),
            "first_token_p50": round(percentile(first, 50), 2),
            "first_token_p95": round(percentile(first, 95), 2),
            "tokens_per_second": round(tokens / (seconds - half)),
            "reprefills": sum(one.progress.reprefills for one in sessions),
            "failovers": sum(one.progress.failovers for one in sessions),
            "busy_answers": sum(self._busy(one) for one in sessions),
            "prefilled_over_prompts": round(prefilled / prompts, 3) if prompts else 0.0,
            "overtaken": overtaken(sessions),
            "slots_left": sum(node.store.count() for node in self.mesh.nodes),
            "looks_at_all_nodes": self.mesh.looks,
            "real_seconds": round(real_seconds, 1),
        }
        if self.faults is not None:
            found["recoveries"] = recoveries(self.faults.faults)
            found["pushed_off_by_draining"] = self.faults.pushed_off
        return found

    @staticmethod
    def _busy(session: Session) -> int:
        """How often a node had no slot for it: each begun prefill but the one that gave its first token."""
        return max(0, session.progress.prefills - session.progress.reprefills - 1)


def overtaken(sessions: Sequence[Session]) -> int:
    """Sessions that stood in line from the start and got their slots after one that came to the same worker later."""
    count = 0
    for head in {session.head for session in sessions}:
        earliest = float("inf")
        mine = [one for one in sessions if one.head == head and one.waited and one.slots_at is not None]
        for session in sorted(mine, key=lambda one: -one.number):
            assert session.slots_at is not None  # noqa: S101  # filtered above
            count += session.slots_at > earliest
            earliest = min(earliest, session.slots_at)
    return count
