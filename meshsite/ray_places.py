"""Where a replica's stages go among the places that Ray found for it: pure functions, which know nothing of Ray.

Ray reserves a bundle of resources for each stage and spreads the bundles over machines. Which stage runs in which
bundle is chosen here, so that copies of one stage lie apart: then one lost machine leaves every layer with somebody.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from meshsite.engine import NodeSpec
from nodes.amounts import human_bytes

#: Costs more than any number of copies that share a machine.
_NEVER = 1_000_000.0
#: Ray counts in thousandths.
_SMALLEST_CPUS = 0.001
_MOST_CPUS = 1.0


@dataclass(frozen=True)
class Room:
    """What a node asks for, or what a machine has in all, as Ray counts it."""

    cpus: float
    gpus: float
    memory_bytes: int

    @classmethod
    def of(cls, spec: NodeSpec) -> Room:
        """What is asked of Ray for a node.

        One processor at most, though it computes with all that were planned for it: processors can be shared, and a
        lost machine's nodes must find room beside others. Memory and GPUs cannot. A node on a GPU has its weights and
        caches in that GPU's memory, which Ray does not count.
        """
        gpus = float(ceil(spec.gpus)) if spec.gpus > 1 else spec.gpus
        return cls(min(max(spec.cpus, _SMALLEST_CPUS), _MOST_CPUS), gpus, 0 if gpus else max(0, spec.memory_bytes))

    @classmethod
    def from_resources(cls, resources: Mapping[str, float]) -> Room:
        """Of Ray's own table of a machine or a bundle."""
        return cls(resources.get("CPU", 0.0), resources.get("GPU", 0.0), int(resources.get("memory", 0)))

    def bundle(self) -> dict[str, float]:
        """As Ray wants to be asked: without what is not needed, since a bundle may hold no zeros only."""
        wanted = {"CPU": self.cpus, "GPU": self.gpus, "memory": float(self.memory_bytes)}
        return {name: value for name, value in wanted.items() if value > 0}

    def and_also(self, other: Room) -> Room:
        return Room(self.cpus + other.cpus, self.gpus + other.gpus, self.memory_bytes + other.memory_bytes)

    def less(self, other: Room) -> Room:
        return Room(self.cpus - other.cpus, self.gpus - other.gpus, self.memory_bytes - other.memory_bytes)

    def holds(self, other: Room) -> bool:
        return self.cpus >= other.cpus and self.gpus >= other.gpus and self.memory_bytes >= other.memory_bytes


def interchangeable(rooms: Sequence[Room], machines: Sequence[Room]) -> list[Room]:
    """As much for each stage as the largest asks for, so that any stage may go into any bundle, where every machine
    could hold that; else as much as each asks for.
    """
    largest = Room(
        max(room.cpus for room in rooms), max(room.gpus for room in rooms), max(room.memory_bytes for room in rooms)
    )
    return [largest] * len(rooms) if all(machine.holds(largest) for machine in machines) else list(rooms)


def fit_in(wanted: Sequence[Room], free: Sequence[Room]) -> bool:
    """Whether all of them surely find room: the largest first, each where it fits first. False may be too careful."""
    left = list(free)
    for room in sorted(wanted, key=lambda one: (one.gpus, one.memory_bytes, one.cpus), reverse=True):
        index = next((index for index, one in enumerate(left) if one.holds(room)), None)
        if index is None:
            return False
        left[index] = left[index].less(room)
    return True


@dataclass(frozen=True)
class Place:
    """A bundle that Ray has reserved."""

    bundle: int
    machine: str
    room: Room


def assign(wanted: Mapping[int, Room], places: Sequence[Place], held: Mapping[int, Sequence[str]]) -> dict[int, Place]:
    """A place for each stage, one each, so that as few as possible share a machine with a copy of theirs.

    `wanted` is what each stage asks for, and `held` on which machines copies of it are. Raises ValueError when there
    are not as many places as stages, or no way to fit them in (each stage's own bundle always fits).
    """
    stages = sorted(wanted)
    if len(stages) != len(places):
        raise ValueError(f"{len(stages)} stages cannot have {len(places)} places.")
    costs = [
        [
            float(list(held.get(stage, ())).count(place.machine)) if place.room.holds(wanted[stage]) else _NEVER
            for place in places
        ]
        for stage in stages
    ]
    chosen = _cheapest(costs)
    if sum(costs[row][column] for row, column in enumerate(chosen)) >= _NEVER:
        raise ValueError("The places are too small for the stages.")
    return {stage: places[column] for stage, column in zip(stages, chosen, strict=True)}


def emptiest(rooms: Mapping[str, Room], wanted: Room, held: Sequence[str]) -> str | None:
    """The machine for a replica of one stage: one with room and fewest copies, of these the one with most memory.

    `rooms` is what is free on each machine, `held` where copies are. None when no machine has room now.
    """
    able = [name for name, room in rooms.items() if room.holds(wanted)]
    return min(able, key=lambda name: (list(held).count(name), -rooms[name].memory_bytes, name), default=None)


def why_not_placed(wanted: Sequence[Room], machines: Sequence[Room]) -> str:
    """Why nodes that ask for so much have no machine yet. `machines` is what each has in all."""
    if not machines:
        return "the cluster has no machine"
    for room in wanted:
        if not any(machine.memory_bytes >= room.memory_bytes for machine in machines):
            most = max(machine.memory_bytes for machine in machines)
            return (
                f"no machine has {human_bytes(room.memory_bytes)} of memory for it, the largest has "
                f"{human_bytes(most)}: split the layers into more stages (--shards), or add a machine"
            )
        if not any(machine.gpus >= room.gpus for machine in machines):
            return f"no machine has {room.gpus:g} GPUs: add one"
        if not any(machine.holds(room) for machine in machines):
            return f"no machine has {_words(room)} together: add one, or split the layers into more stages (--shards)"
    return "every machine that is large enough is full: it is placed when one has room, or when one is added"


def _words(room: Room) -> str:
    parts = [f"{room.cpus:g} CPUs"] + ([f"{room.gpus:g} GPUs"] if room.gpus else [])
    return ", ".join([*parts, f"{human_bytes(room.memory_bytes)} of memory"])


def _cheapest(costs: Sequence[Sequence[float]]) -> list[int]:
    """The column of each row, each column once, with the least sum: the Hungarian method with potentials, O(n³).

    After H. W. Kuhn, "The Hungarian method for the assignment problem" (1955), in the form that adds one row a time.
    """
    size = len(costs)
    row_potential, column_potential = [0.0] * size, [0.0] * (size + 1)
    row_of = [-1] * (size + 1)  # of each column; the last one stands for the row that is being added
    for row in range(size):
        row_of[size] = row
        slack, came_from, seen = [float("inf")] * size, [size] * size, [False] * (size + 1)
        column = size
        while row_of[column] >= 0:
            seen[column] = True
            here = row_of[column]
            for other in range(size):
                if not seen[other]:
                    reduced = costs[here][other] - row_potential[here] - column_potential[other]
                    if reduced < slack[other]:
                        slack[other], came_from[other] = reduced, column
            following = min((other for other in range(size) if not seen[other]), key=lambda other: slack[other])
            step = slack[following]
            for other in range(size + 1):
                if seen[other]:
                    row_potential[row_of[other]] += step
                    column_potential[other] -= step
                elif other < size:
                    slack[other] -= step
            column = following
        while column != size:
            row_of[column] = row_of[came_from[column]]
            column = came_from[column]
    chosen = [0] * size
    for column in range(size):
        chosen[row_of[column]] = column
    return chosen
