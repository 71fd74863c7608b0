"""A split by capacity for a launcher: `manage.py mesh_plan` as a process, whose torch does not stay in this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshsite.engine import EngineRefused
from nodes.layers import LayerRange
from nodes.machines import Machine

ROOT = Path(__file__).resolve().parent.parent
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@dataclass(frozen=True)
class PlannedStage:
    """What each node of a stage needs. `machine` is where the plan sees the first replica; `machines` where each.

    `cache_bytes` is what its MESHNET_KV_MAX_BYTES may be; `memory_bytes` holds it, the weights, Python and torch.
    """

    layers: LayerRange
    machine: str
    memory_bytes: int
    cpus: float
    gpus: float
    weight_bytes: int = 0
    cache_bytes: int = 0
    machines: tuple[str, ...] = ()


def plan_split(
    model: str,
    shards: int,
    machines: Sequence[Machine],
    *,
    layers: Sequence[LayerRange] | None = None,
    replicas: int = 1,
    dtype: str = "float32",
    context_length: int = 0,
    environ: Mapping[str, str] | None = None,
    run: Run = subprocess.run,
) -> list[PlannedStage]:
    """The stages in the order of their layers. Takes seconds. Raises EngineRefused with the reason.

    `environ` is what settings are read from (MESHNET_VAR_DIR, MESHNET_KV_MAX_SESSIONS, …); by default this process's.
    """
    cut = ["--layers", ",".join(map(str, layers))] if layers is not None else ["--shards", str(shards)]
    context = ["--context", str(context_length)] if context_length else []
    command = [
        *(sys.executable, "manage.py", "mesh_plan", "--json", "--model", model, "--dtype", dtype),
        *("--replicas", str(replicas), *cut, *context),
        *(word for machine in machines for word in ("--machine", machine_text(machine))),
    ]
    done = run(
        command,
        cwd=ROOT,
        env=dict(os.environ if environ is None else environ),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise EngineRefused(_reason(done.stderr))
    return [_stage(stage) for stage in json.loads(done.stdout)["stages"]]


def machine_text(machine: Machine) -> str:
    """As `mesh_plan --machine` reads it."""
    size = f"{machine.name}={machine.memory_bytes}@{round(machine.bytes_per_second)}"
    return f"{size},cpus={machine.cpus:.6g},gpus={machine.gpus:.6g}"


def _stage(found: dict[str, Any]) -> PlannedStage:
    return PlannedStage(
        layers=LayerRange.parse(found["layers"]),
        machine=found["machines"][0],
        memory_bytes=found["memory_bytes"],
        cpus=found["cpus"],
        gpus=found["gpus"],
        weight_bytes=found["weight_bytes"],
        cache_bytes=found["cache_bytes"],
        machines=tuple(found["machines"]),
    )


def _reason(stderr: str) -> str:
    """What the command said, without the name of its kind."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    said = lines[-1] if lines else "it said nothing"
    return said.removeprefix("CommandError: ").rpartition("error: ")[2]
