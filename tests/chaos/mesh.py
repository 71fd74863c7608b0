"""A mesh that may be broken: stages of replicas behind gates, a spare for each stage, one head. All real processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests import processes
from tests.chaos.gate import Forward, Gate, Meddle, gate_to
from tests.processes import Served, wait_until
from tests.toy_mesh import get_json

STAGES = ("0:1", "1:3", "3:4")
STEP = "POST /forward"

#: A fault: what it does to the request that springs it.
Fault = Callable[["Replica", Forward], bytes | None]


@dataclass
class Replica:
    """A node's place: the gate that the head knows, and the process that stands behind it now."""

    gate: Gate
    served: Served
    is_suspended: bool = False

    @property
    def url(self) -> str:
        return self.gate.url

    @property
    def is_alive(self) -> bool:
        return bool(self.served.process.is_alive())

    def suspend(self) -> None:
        """SIGSTOP: it holds its connections and says nothing."""
        self.is_suspended = True
        os.killpg(self.served.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        self.is_suspended = False
        os.killpg(self.served.process.pid, signal.SIGCONT)

    def replace(self, served: Served) -> Served:
        """Another process takes the place at once; returns the one that had it."""
        former, self.served = self.served, served
        self.gate.target = served.port
        return former

    def sessions(self) -> list[dict[str, Any]]:
        listed: list[dict[str, Any]] = get_json(f"{self.served.url}/sessions")["sessions"]
        return listed


@dataclass
class Stage:
    """The replicas of one stretch of layers. `arm` sets a trap for one of its steps to come."""

    replicas: list[Replica]
    #: Ready and empty, to take a lost node's place at once; None where there is none.
    spare: Served | None = None
    victim: Replica | None = None
    sprung_at: float = 0.0
    _fault: Fault | None = None
    _steps_left: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def arm(self, step: int, fault: Fault) -> None:
        """The step-th `/forward` from now on, whichever replica gets it, springs the fault; once."""
        with self._lock:
            self.victim, self._fault, self._steps_left = None, fault, step

    def disarm(self) -> None:
        with self._lock:
            self._fault = None

    def watch(self, replica: Replica, gate: Gate, request: str) -> Meddle | None:
        if request != STEP:
            return None
        with self._lock:
            self._steps_left -= 1
            if self._fault is None or self._steps_left:
                return None
            fault, self._fault = self._fault, None
            self.victim, self.sprung_at = replica, time.monotonic()
        return partial(fault, replica)

    def swap(self, replica: Replica) -> None:
        """The replica's node is killed and the spare takes its place; the spare's own place is filled by `heal`."""
        assert self.spare is not None, "the spare was used already"
        former, self.spare = replica.replace(self.spare), None
        former.kill()
        self._lost = former

    _lost: Served | None = None

    def heal(self) -> None:
        """Everyone is back: suspended nodes go on, killed ones are started again under their address."""
        self.disarm()
        for replica in self.replicas:
            if replica.is_suspended:
                replica.resume()
            if not replica.is_alive:
                if self.spare is None:
                    replica.served.start().wait_ready()
                else:
                    self.swap(replica)
        if self._lost is not None:
            self.spare, self._lost = self._lost.start().wait_ready(), None

    def processes(self) -> list[Served]:
        return [*(replica.served for replica in self.replicas), *([self.spare] if self.spare else [])]


@dataclass
class ChaosMesh:
    """Stages in the order of their layers, and the head over all gates."""

    stages: list[Stage]
    head: Served
    api_key: str
    model: Path

    @property
    def replicas(self) -> list[Replica]:
        return [replica for stage in self.stages for replica in stage.replicas]

    def heal(self) -> None:
        for stage in self.stages:
            stage.heal()

    def living(self) -> list[Replica]:
        return [replica for replica in self.replicas if replica.is_alive and not replica.is_suspended]

    def held(self) -> dict[str, list[str]]:
        """The sessions on living nodes, by the node's URL."""
        found = {replica.url: [row["id"] for row in replica.sessions()] for replica in self.living()}
        return {url: ids for url, ids in found.items() if ids}

    def boot_ids(self) -> dict[str, str]:
        """Of the nodes that answer now, by URL."""
        found = {}
        for replica in self.living():
            with contextlib.suppress(OSError):
                found[replica.url] = str(get_json(f"{replica.served.url}/status")["boot_id"])
        return found

    def is_idle(self) -> bool:
        return not self.held()

    def steps(self) -> int:
        """How many steps went through the gates so far."""
        return sum(replica.gate.requests.get(STEP, 0) for replica in self.replicas)

    def rows(self, most: int = 1_000_000) -> list[dict[str, Any]]:
        """Generations as the head's database has them, newest first. Read beside the head, which goes on writing."""
        path = f"file:{self.head.folder / 'meshnet.sqlite3'}?mode=ro"
        with closing(sqlite3.connect(path, uri=True, timeout=10)) as database:
            database.row_factory = sqlite3.Row
            rows = database.execute("SELECT * FROM generation_generation ORDER BY id DESC LIMIT ?", (most,)).fetchall()
        return [dict(row) for row in rows]

    def last_row(self) -> dict[str, Any]:
        """The newest generation's row once it has ended, which is just after its answer."""
        row: dict[str, Any] = wait_until(
            lambda: (rows := self.rows(1)) and rows[0]["status"] != "running" and rows[0], 10, "the row has not ended"
        )
        return row | {"timeline": json.loads(row["timeline"]), "route": json.loads(row["route"])}


@contextmanager
def running_chaos_mesh(
    model: Path,
    folder: Path,
    *,
    layers: Sequence[str] = STAGES,
    replicas: int = 2,
    spares: bool = False,
    node: dict[str, str] | None = None,
    head: dict[str, str] | None = None,
    head_preload: str = "",
) -> Iterator[ChaosMesh]:
    """Starts `replicas` nodes for each stretch of layers behind gates, and a head; ends all that it started."""
    with ExitStack() as stack:
        stages = []
        for index, stretch in enumerate(layers):
            made = [
                processes.node(folder / f"node-{index}-{number}", model, stretch, **(node or {}))
                for number in range(replicas + spares)
            ]
            places = [Replica(stack.enter_context(gate_to(one.port)), one) for one in made[:replicas]]
            stage = Stage(places, made[replicas] if spares else None)
            for place in places:
                place.gate.watch = partial(stage.watch, place)
            stages.append(stage)
        served_head = processes.head(
            folder / "head", model, [place.url for stage in stages for place in stage.replicas], **(head or {})
        )
        served_head.preload = head_preload
        mesh = ChaosMesh(stages, served_head, "", model)
        stack.callback(_end, mesh)
        for one in (one for stage in stages for one in stage.processes()):
            one.start()
        mesh.api_key = processes.prepare_head(served_head)
        for one in (one for stage in stages for one in stage.processes()):
            one.wait_ready()
        served_head.start().wait_ready()
        yield mesh


def _end(mesh: ChaosMesh) -> None:
    """Kills what is left: what these processes hold is thrown away with their folders."""
    lost = [stage._lost for stage in mesh.stages if stage._lost is not None]
    for served in [mesh.head, *lost, *(one for stage in mesh.stages for one in stage.processes())]:
        if served.process is not None and served.process.is_alive():
            served.kill()
