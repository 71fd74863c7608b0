"""The whole simulation, part by part; each part's numbers are plain values for JSON."""

from __future__ import annotations

import gc
import json
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meshsite.simulation.arithmetic import arithmetic
from meshsite.simulation.load import Load, LoadRun
from meshsite.simulation.memory import memory
from meshsite.simulation.mesh import MeshSize
from meshsite.simulation.planning import planning
from meshsite.simulation.polling import polling

Say = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What is simulated, and how much of it. `loads` are shares of the mesh's slots with a number of sessions each."""

    size: MeshSize = field(default_factory=MeshSize)
    heads: tuple[int, ...] = (1, 4)
    beats: int = 2
    plan_sizes: tuple[int, ...] = (10, 100, 1000, 2000, 5000)
    poll_sizes: tuple[int, ...] = (10, 100, 1000)
    loads: tuple[tuple[float, int], ...] = ((0.5, 2_000), (0.9, 10_000), (1.1, 3_000))
    faults: tuple[float, int] = (0.7, 2_000)
    rounds: int = 50


QUICK = Plan(
    size=MeshSize(nodes=100, head_workers=2),
    heads=(1,),
    plan_sizes=(10, 100, 1000),
    poll_sizes=(10, 100),
    loads=((0.5, 100), (0.9, 250), (1.1, 250)),
    faults=(0.7, 200),
    rounds=20,
)


def simulate(plan: Plan, parts: tuple[str, ...], seed: int, say: Say) -> dict[str, Any]:
    """The numbers of each part. `announcing` needs the default database for itself."""
    found: dict[str, Any] = {
        "seed": seed,
        "nodes": plan.size.nodes,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    begun = time.perf_counter()
    if "announcing" in parts:
        from meshsite.simulation.registry import announcing

        found["announcing"] = [announcing(plan.size.nodes, heads, plan.beats, seed, say=say) for heads in plan.heads]
    if "planning" in parts:
        say("Planning …")
        found["planning"] = planning(plan.plan_sizes, plan.rounds, seed)
    if "polling" in parts:
        say("Asking all nodes for their status, over the loopback …")
        found["polling"] = polling(plan.poll_sizes)
    if "load" in parts:
        found["load"] = [_load(Load(share, count), plan.size, seed, say) for share, count in plan.loads]
    if "faults" in parts:
        share, count = plan.faults
        found["faults"] = [_load(Load(share, count, block_tokens=8, with_faults=True), plan.size, seed, say)]
    if "memory" in parts:
        found["memory"] = [memory()]
    if "arithmetic" in parts:
        found["arithmetic"] = arithmetic()
    found["seconds"] = round(time.perf_counter() - begun, 1)
    found["torch_loaded"] = "torch" in sys.modules
    return found


def write(found: dict[str, Any], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "latest.json"
    target.write_text(json.dumps(found, indent=1) + "\n")
    return target


def _load(load: Load, size: MeshSize, seed: int, say: Say) -> dict[str, Any]:
    what = f"{load.sessions} sessions at {load.share:.0%} of the slots{', with faults' if load.with_faults else ''}"
    say(f"{what} …")

    def progress(done: int) -> None:
        if done % max(1, load.sessions // 4) == 0:
            say(f"… {done} of {load.sessions}")

    try:
        return LoadRun(load, size, seed).run(progress)
    finally:
        gc.collect()  # loops and what they wait for hold each other
