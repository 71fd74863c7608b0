"""A split by capacity for a launcher: `manage.py mesh_plan` as a process, whose torch does not stay in this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from django.conf import settings

from meshsite.engine import EngineRefused, Wait
from meshsite.stoppable_run import run_stoppable
from nodes.layers import LayerRange
from nodes.machines import Machine

ROOT = Path(__file__).resolve().parent.parent
Run = Callable[..., "subprocess.CompletedProcess[str]"]
#: Loading torch and the model's configuration takes some seconds, also of a hub; the search is bounded.
PLAN_SECONDS = 180
#: What the command reads: so many digits before the point.
_MOST_BYTES, _MOST_UNITS = 10.0**15 - 1, 10.0**6 - 1


@dataclass(frozen=True)
class PlannedStage:
    """What each node of a stage needs. `machine` is where the plan sees the first replica; `machines` where each.

    `cpus` is its whole share of the machine's processors, with which it computes; not what must be kept free for it.
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
    wait: Wait = lambda seconds: False,
    run: Run = run_stoppable,
) -> list[PlannedStage]:
    """The stages in the order of their layers: the best split that is found within a bound, not always proven best.
    Takes seconds, PLAN_SECONDS at most. Raises EngineRefused with the reason, and Stopped when `wait` says so.
    Main thread only.

    `shards` does not matter where `layers` names the stretches.

    `environ` is what settings are read from (MESHNET_VAR_DIR, MESHNET_KV_MAX_SESSIONS, …); by default this process's.
    The names of machines need not be ones that an operator could type: the command gets numbers.
    """
    if not machines:
        raise EngineRefused("There is no machine to hold layers.")  # the command would take this one
    cut = ["--layers", ",".join(map(str, layers))] if layers is not None else ["--shards", str(shards)]
    context = ["--context", str(context_length)] if context_length else []
    numbered = [replace(machine, name=str(index)) for index, machine in enumerate(machines)]
    command = [
        *(sys.executable, "manage.py", "mesh_plan", "--json", "--model", model, "--dtype", dtype),
        *("--replicas", str(replicas), *cut, *context),
        *(word for machine in numbered for word in ("--machine", machine_text(machine))),
    ]
    try:
        done = run(
            command,
            cwd=ROOT,
            env={**os.environ, "MESHNET_VAR_DIR": str(settings.MESHNET_VAR_DIR)} if environ is None else dict(environ),
            timeout=PLAN_SECONDS,
            wait=wait,
        )
    except subprocess.TimeoutExpired:
        raise EngineRefused(
            f"mesh_plan did not end within {PLAN_SECONDS} s. Name the cut with --layers, or try again when the machine "
            "has less to do."
        ) from None
    if done.returncode:
        raise EngineRefused(_reason(done.stderr))
    names = [machine.name for machine in machines]
    return [_stage(stage, names) for stage in json.loads(done.stdout)["stages"]]


def machine_text(machine: Machine) -> str:
    """As `mesh_plan --machine` reads it: plain decimals. A speed of 0 is not known, and not written."""
    memory = max(1, machine.memory_bytes)  # a byte holds nothing either, and can be read
    speed = round(min(max(machine.bytes_per_second, 1), _MOST_BYTES)) if machine.bytes_per_second > 0 else 0
    size = f"{machine.name}={memory}" + (f"@{speed}" if speed else "")
    return f"{size},cpus={_units(machine.cpus)},gpus={_units(machine.gpus)}"


def _units(count: float) -> str:
    return f"{min(count, _MOST_UNITS):.6f}".rstrip("0").rstrip(".")


def _stage(found: dict[str, Any], names: Sequence[str]) -> PlannedStage:
    machines = tuple(names[int(number)] for number in found["machines"])
    return PlannedStage(
        layers=LayerRange.parse(found["layers"]),
        machine=machines[0],
        memory_bytes=found["memory_bytes"],
        cpus=found["cpus"],
        gpus=found["gpus"],
        weight_bytes=found["weight_bytes"],
        cache_bytes=found["cache_bytes"],
        machines=machines,
    )


def _reason(stderr: str) -> str:
    """What the command said, without the name of the error."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    said = lines[-1] if lines else "mesh_plan ended without a word."
    for start in ("CommandError: ", "manage.py mesh_plan: error: "):
        said = said.removeprefix(start)
    return said
