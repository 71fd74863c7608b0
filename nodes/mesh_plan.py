"""What a mesh over given machines would look like: the split, its memory, and the time of a token. Pure; no torch.

Time: a stage takes its weights' bytes by the speed of a machine and LAYER_MS for each layer (nodes/split.py), and
every stage costs one hop. A session that is alone finds the whole speed of each machine; many share it.

Replicas are apart: each stage's nodes stand on different machines as long as there are enough.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from nodes.amounts import human_bytes, parse_bytes
from nodes.errors import SplitRefused
from nodes.layers import LayerRange
from nodes.machines import Machine
from nodes.split import Costs, split
from nodes.stage_shares import share

#: What a layer takes for one token besides reading its weights: Python and small kernels. 15 layers of SmolLM2-135M
#: took 23.7 ms on a thread that reads their 212 MB in 11.2.
LAYER_MS = 0.8
#: From head to node and back on one machine, with what the head does in between.
HOP_MS = 1.5
#: How many nodes may hold each stage: each is planned, and named.
MOST_REPLICAS = 1000


class ModelCosts(Costs, Protocol):
    """Costs, and the length of the text that they are told for."""

    @property
    def context_length(self) -> int: ...


@dataclass(frozen=True)
class MachineText:
    """`NAME=MEMORY[@SPEED][,cpus=N][,gpus=N]` as an operator writes it. A speed of 0 is not known."""

    name: str
    memory_bytes: int
    bytes_per_second: float = 0.0
    cpus: float = 1.0
    gpus: float = 0.0

    @classmethod
    def parse(cls, text: str) -> MachineText:
        """Raises ValueError that says what is wrong."""
        size, *more = text.split(",")
        match = re.fullmatch(r"([\w.:-]{1,100})=([^@]+)(?:@([^@]+?)(?:/s)?)?", size.strip())
        if match is None:
            raise ValueError(f"{text!r} is not NAME=MEMORY[@SPEED][,cpus=N,gpus=N], such as gpu1=80GiB@2TB,gpus=1.")
        made = cls(match[1], parse_bytes(match[2]), _speed(match[3]) if match[3] else 0.0)
        for part in more:
            field, _, value = part.strip().partition("=")
            if field not in ("cpus", "gpus") or not re.fullmatch(r"\d{1,6}(\.\d{1,6})?", value):
                raise ValueError(f"{part!r} is not cpus=N or gpus=N.")
            made = replace(made, cpus=float(value)) if field == "cpus" else replace(made, gpus=float(value))
        return made

    def with_speed(self, speed: float) -> Machine:
        """`speed` is taken where none was named."""
        return Machine(self.name, self.memory_bytes, self.bytes_per_second or speed, self.cpus, self.gpus)


def _speed(text: str) -> float:
    try:
        return float(parse_bytes(text))
    except ValueError:
        raise ValueError(
            f"{text!r} is not a speed: write the bytes of weights read per second, such as 12GB or 2TB."
        ) from None


@dataclass(frozen=True)
class PlannedStage:
    """One stage. All but `machines` is of one node; there is one machine for each replica.

    `cpus` and `gpus` are the stage's whole share of its machine. `alone_ms` is what a step takes when no other node of
    the machine works, `compute_ms` when all do.
    """

    layers: LayerRange
    machines: tuple[str, ...]
    weight_bytes: int
    cache_bytes: int
    memory_bytes: int
    sessions_fit: int
    cpus: float
    gpus: float
    alone_ms: float
    compute_ms: float


@dataclass(frozen=True)
class MeshPlan:
    """`proven_best`: no other cut onto these machines, or teams of them, is better. Otherwise it is the best that was
    found within the bound of the search.
    """

    stages: tuple[PlannedStage, ...]
    replicas: int
    context_length: int
    max_sessions: int
    hop_ms: float
    proven_best: bool = True

    @property
    def compute_ms(self) -> float:
        """Of a single session, which passes one stage after the other."""
        return sum(stage.alone_ms for stage in self.stages)

    @property
    def token_ms(self) -> float:
        return self.compute_ms + self.hop_ms * len(self.stages)

    @property
    def slowest_ms(self) -> float:
        return max(stage.compute_ms for stage in self.stages)

    def as_json(self) -> dict[str, Any]:
        return {
            "replicas": self.replicas,
            "context_length": self.context_length,
            "max_sessions": self.max_sessions,
            "proven_best": self.proven_best,
            "token_ms": self.token_ms,
            "compute_ms": self.compute_ms,
            "hop_ms": self.hop_ms,
            "slowest_stage_ms": self.slowest_ms,
            "stages": [{**vars(stage), "layers": str(stage.layers)} for stage in self.stages],
        }


def plan_mesh(
    costs: ModelCosts,
    machines: Sequence[Machine],
    *,
    shards: int,
    layers: Sequence[LayerRange] | None,
    replicas: int,
    reserve_bytes: int,
    max_sessions: int,
    max_cache_bytes: int,
    hop_ms: float = HOP_MS,
    layer_ms: float = LAYER_MS,
) -> MeshPlan:
    """Raises SplitRefused that names what is missing."""
    _check_replicas(costs, machines, len(layers) if layers else shards, replicas, reserve_bytes)
    groups = teams(machines, replicas)
    speeds = {machine.name: machine.bytes_per_second for machine in machines}
    found = split(costs, shards, groups, reserve_bytes=reserve_bytes, layers=layers, layer_seconds=layer_ms / 1e3)
    stages = [
        PlannedStage(
            layers=stage.layers,
            machines=tuple(stage.machine.name.split(_TEAM)),
            weight_bytes=stage.weight_bytes,
            cache_bytes=stage.cache_bytes(max_sessions, max_cache_bytes),
            memory_bytes=stage.memory_bytes(max_sessions, max_cache_bytes),
            sessions_fit=stage.sessions(),
            cpus=stage.machine.cpus,
            gpus=stage.machine.gpus,
            alone_ms=stage.seconds_at(min(speeds[name] for name in stage.machine.name.split(_TEAM))) * 1e3,
            compute_ms=stage.seconds * 1e3,
        )
        for stage in found.stages
    ]
    return MeshPlan(tuple(stages), replicas, costs.context_length, max_sessions, hop_ms, found.proven)


def _check_replicas(costs: Costs, machines: Sequence[Machine], shards: int, replicas: int, reserve_bytes: int) -> None:
    """Raises SplitRefused where the replicas together need more than there is: before teams are made of anything."""
    if not 1 <= replicas <= MOST_REPLICAS:
        raise SplitRefused(f"Each stage can be held by 1 to {MOST_REPLICAS} nodes, not {replicas}.")
    needed = replicas * (costs.bytes(LayerRange(0, costs.n_layers)) + shards * reserve_bytes)
    there = sum(machine.memory_bytes for machine in machines)
    if replicas > 1 and machines and needed > there:
        raise SplitRefused(
            f"{replicas} replicas of {shards} stages take {human_bytes(needed)}; the machines have "
            f"{human_bytes(there)}: {human_bytes(needed - there)} are missing. Name fewer replicas, or more machines."
        )


_TEAM = "\n"


def teams(machines: Sequence[Machine], replicas: int) -> list[Machine]:
    """Groups of `replicas` machines for one stage each; a group is as good as the worst of them.

    Machines of like speed stand together. With fewer machines than replicas each is shared in equal parts; those left
    over stay spare. Exact only where the machines come in groups of equals.
    """
    if replicas == 1 or not machines:
        return list(machines)
    parts = -(-replicas // len(machines))
    pool = sorted(machines, key=lambda machine: (-machine.bytes_per_second, -machine.memory_bytes, machine.name))
    pool = [share(machine, parts) for machine in pool for _ in range(parts)]
    if len(pool) < replicas:
        raise SplitRefused(f"There are too few machines for {replicas} replicas.")
    return [_team(pool[start : start + replicas]) for start in range(0, len(pool) - replicas + 1, replicas)]


def _team(members: Sequence[Machine]) -> Machine:
    return Machine(
        _TEAM.join(machine.name for machine in members),
        min(machine.memory_bytes for machine in members),
        min(machine.bytes_per_second for machine in members),
        min(machine.cpus for machine in members),
        min(machine.gpus for machine in members),
    )
