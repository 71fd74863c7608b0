"""The soak: clients that know their answers, on a mesh that is broken at random all the time.

Holds when every answer is right or a clean error, when no session is left on any node after the last request and the
TTL, when no generation is left running in the database, and when memory, threads and open files of the head and of
the nodes that lived through it are back where they were.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.chaos.havoc import Havoc
from tests.chaos.load import LONGEST, Load, Question
from tests.chaos.matrix import PATIENCE, undisturbed
from tests.chaos.mesh import ChaosMesh, running_chaos_mesh
from tests.chaos.model import Reference
from tests.chaos.vitals import Vitals, vitals
from tests.processes import wait_until

#: A session that no release reached is gone after this, in seconds.
TTL = 20.0
SAMPLE_SECONDS = 2.0
#: Memory may be so much larger in the second half than in the first: allocators and caches settle.
MOST_GROWTH = 0.05
#: Pools of threads and connections may have grown by so many since the warm-up. A leak is one for each request.
SLACK = 24
#: Idle connections are closed by whoever has had enough of them first; nodes wait 75 s.
IDLE_SECONDS = 90.0


@dataclass
class Report:
    seconds: float
    seed: int
    endings: dict[str, int]
    events: dict[str, int]
    tokens: int
    rows: dict[str, int] = field(default_factory=dict)
    repairs: dict[str, int] = field(default_factory=dict)
    #: By process: median of the first half and of the second, in MiB.
    memory: dict[str, tuple[float, float]] = field(default_factory=dict)
    #: By process: threads and files before the first request, and after the last.
    idle: dict[str, tuple[Vitals, Vitals]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        idle = {name: [[v.threads, v.files] for v in pair] for name, pair in self.idle.items()}
        return {**self.__dict__, "idle": idle}

    def lines(self) -> list[str]:
        answers = sum(self.endings.values())
        lines = [
            f"\n{answers} requests, {self.tokens} tokens in {self.seconds:.0f} s, seed {self.seed}:",
            *(f"  {count:6} {ending}" for ending, count in sorted(self.endings.items())),
            "What happened: " + ", ".join(f"{count} {name}" for name, count in sorted(self.events.items())),
            "Rows: " + ", ".join(f"{count} {name}" for name, count in sorted({**self.rows, **self.repairs}.items())),
        ]
        for name, (first, second) in self.memory.items():
            before, after = self.idle[name]
            lines.append(
                f"  {name}: {first:.1f} MiB in the first half, {second:.1f} in the second; "
                f"threads {before.threads} -> {after.threads}, open files {before.files} -> {after.files}"
            )
        return [*lines, f"{len(self.problems)} problems.", *(f"  {problem}" for problem in self.problems[:50])]


class Soak:
    """One run on a mesh of its own or of a test's. `say` gets a line of progress every few seconds."""

    def __init__(
        self,
        mesh: ChaosMesh,
        reference: Reference,
        *,
        clients: int,
        seed: int,
        questions: int = 16,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._mesh = mesh
        self._questions = _questions(mesh, reference, questions)
        self._clients = clients
        self._seed = seed
        self._say = say
        self._survivors = [mesh.stages[0].replicas[0], mesh.stages[2].replicas[0]]
        self._watched = {
            "head": mesh.head,
            "node of stage 0": self._survivors[0].served,
            "node of stage 2": self._survivors[1].served,
        }

    def run(self, seconds: float, *, pause: float = 1.0, warm_up: float = 5.0) -> Report:
        """`pause` scales the time between two faults. Afterwards the mesh is whole."""
        # Pools of threads and connections grow to what the load needs, and stay: that is their idle level.
        self._load("warm-up").run(warm_up)
        before = {name: vitals(served) for name, served in self._watched.items()}
        load = self._load(str(self._seed))
        havoc = Havoc(self._mesh, self._survivors, seed=self._seed, pause=pause)
        load.start()
        havoc.start()
        try:
            samples = self._watch(seconds, load)
        finally:
            havoc.stop()
            load.stop(90)
        report = Report(seconds, self._seed, dict(load.counts), dict(havoc.counts), load.tokens)
        report.problems += [*load.problems, *havoc.problems]
        self._settle(before, report)
        for name, sizes in samples.items():
            half = len(sizes) // 2
            first, second = (statistics.median(part) / 2**20 for part in (sizes[:half], sizes[half:]))
            report.memory[name] = (first, second)
            if second > first * (1 + MOST_GROWTH):
                report.problems.append(f"{name} grew from {first:.1f} to {second:.1f} MiB")
        return report

    def _load(self, seed: str) -> Load:
        return Load(self._mesh, self._questions, clients=self._clients, seed=seed)

    def _watch(self, seconds: float, load: Load) -> dict[str, list[int]]:
        """Memory of the watched processes over the time."""
        begun = time.monotonic()
        samples: dict[str, list[int]] = {name: [] for name in self._watched}
        said_at = begun
        while (now := time.monotonic()) < begun + seconds:
            time.sleep(min(SAMPLE_SECONDS, seconds / 10))
            for name, served in self._watched.items():
                samples[name].append(vitals(served).rss)
            if now - said_at > 5:
                said_at = now
                counts = ", ".join(f"{count} {ending}" for ending, count in sorted(load.counts.items()))
                head = samples["head"][-1] / 2**20
                self._say(f"[{now - begun:.0f}/{seconds:.0f} s] {counts}; {load.tokens} tokens; head {head:.0f} MiB")
        return samples

    def _settle(self, before: dict[str, Vitals], report: Report) -> None:
        """What must be true once nobody asks any more."""
        try:
            wait_until(self._mesh.is_idle, TTL + 10, "sessions are left on nodes after the TTL")
        except AssertionError as error:
            report.problems.append(f"{error}: {self._mesh.held()}")
        try:
            wait_until(lambda: not self._running(), 10, "generations are left running in the database")
        except AssertionError as error:
            report.problems.append(f"{error}: {self._running()}")
        rows = self._mesh.rows()
        report.rows = dict(Counter(row["status"] for row in rows))
        report.repairs = {name: sum(row[name] for row in rows) for name in ("failovers", "cache_misses")}

        def is_back(name: str) -> bool:
            now = vitals(self._watched[name])
            report.idle[name] = (before[name], now)
            return now.threads <= before[name].threads + SLACK and now.files <= before[name].files + SLACK

        for name in self._watched:
            try:
                wait_until(partial(is_back, name), IDLE_SECONDS, f"{name} still holds threads or files")
            except AssertionError as error:
                was, now = report.idle[name]
                report.problems.append(f"{error}: {was} -> {now}")

    def _running(self) -> list[str]:
        return [row["session_id"] for row in self._mesh.rows() if row["status"] == "running"]


@contextmanager
def running_soak_mesh(model: Path, folder: Path) -> Iterator[ChaosMesh]:
    node = {"MESHNET_KV_TTL_SECONDS": str(TTL)}
    head = {**PATIENCE, "MESHNET_ROUTE_WAIT_SECONDS": "15"}
    with running_chaos_mesh(model, folder, node=node, head=head) as mesh:
        yield mesh


def _questions(mesh: ChaosMesh, reference: Reference, most: int) -> list[Question]:
    """Two of three greedy, as the whole model answers them; the others with a seed, as the mesh does undisturbed."""
    found: list[Question] = []
    for number in range(1000):
        prompt, is_greedy = f"Question {number}", len(found) % 3 != 2
        if is_greedy:
            text, seed = reference.text(prompt, LONGEST), None
        else:
            text, seed = undisturbed(mesh, prompt, LONGEST, number), number
        if len(text) == LONGEST:  # else it ended early
            found.append(Question(prompt, seed, text))
        if len(found) == most:
            return found
    raise AssertionError("no prompts with long answers")
