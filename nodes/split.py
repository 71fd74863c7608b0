"""How a model is cut into stages for given machines. Pure functions over numbers: no torch, no database, no clock.

A decode step reads every weight of a stage once, so a stage takes its weights' bytes (the tail's norm and output head
among them) by the speed of its machine, and for each layer what its Python takes, however small the layer is. The cut
is the one whose slowest stage is as fast as possible, since that is what many sessions wait for; among those, the one
that takes a single session the least time.

A stage needs memory for its weights, one session of the longest text, and Python with torch. Layers that reuse keys of
others stay with them. Stages on one machine share its speed, memory, CPUs and GPUs in equal parts; that happens when
there are fewer machines than stages, or when it does not fit otherwise.

The search is bounded by what it looks at (nodes/stage_search.py), so that it takes seconds at most. A split says
whether it is proven to be the best, or the best that was found within the bound.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from nodes.amounts import human_bytes
from nodes.errors import SplitRefused
from nodes.layers import LayerRange
from nodes.machines import Machine
from nodes.stage_search import best_assignment
from nodes.stage_shares import Block


class Costs(Protocol):
    """What of nodes/layer_costs.py a split needs."""

    @property
    def n_layers(self) -> int: ...

    def weight_bytes(self, layers: LayerRange) -> int: ...

    def bytes(self, layers: LayerRange) -> int: ...

    def runs_alone(self, layers: LayerRange) -> bool: ...


@dataclass(frozen=True)
class Stage:
    """One stage and its share of a machine. `session_bytes` is the cache of one longest text on it.

    `layer_seconds` is what a layer takes besides reading its weights.
    """

    layers: LayerRange
    machine: Machine
    weight_bytes: int
    session_bytes: int
    reserve_bytes: int
    layer_seconds: float

    @property
    def seconds(self) -> float:
        """What its part of a decode step takes while the machine's other stages work too."""
        return self.seconds_at(self.machine.bytes_per_second)

    def seconds_at(self, bytes_per_second: float) -> float:
        return self.weight_bytes / bytes_per_second + self.layers.size * self.layer_seconds

    @property
    def room_bytes(self) -> int:
        """What its share leaves for caches."""
        return self.machine.memory_bytes - self.reserve_bytes - self.weight_bytes

    def sessions(self) -> int:
        """How many sessions of the longest text fit."""
        return self.room_bytes // self.session_bytes

    def cache_bytes(self, sessions: int, most_bytes: int) -> int:
        """What its caches may take: so many sessions, if its share and a node's own limit allow."""
        return min(sessions * self.session_bytes, most_bytes, self.room_bytes)

    def memory_bytes(self, sessions: int, most_bytes: int) -> int:
        """What to ask for each node of the stage."""
        return self.weight_bytes + self.cache_bytes(sessions, most_bytes) + self.reserve_bytes


@dataclass(frozen=True)
class Split:
    """Stages in the order of their layers. Not `proven`: they fit, but there may be a faster cut, or one that fits with
    fewer stages on a machine.
    """

    stages: tuple[Stage, ...]
    proven: bool


def split(
    costs: Costs,
    shards: int,
    machines: Sequence[Machine],
    *,
    reserve_bytes: int,
    layers: Sequence[LayerRange] | None = None,
    layer_seconds: float = 0.0,
) -> Split:
    """A cut into `shards` stages; `layers` names the cut, and only the machines are chosen.

    Each stage's machine is its share. Raises SplitRefused that names what is missing.
    """
    blocks = _blocks(costs) if layers is None else _given(costs, layers)
    shards = shards if layers is None else len(blocks)
    if not 1 <= shards <= len(blocks):
        together = "" if len(blocks) == costs.n_layers else " (layers that share keys stay together)"
        raise SplitRefused(
            f"This model can be cut into 1 to {len(blocks)} stages{together}, not {shards}. Name another number."
        )
    if not machines:
        raise SplitRefused("There is no machine to hold layers: name one.")
    sizes = [Block(costs.weight_bytes(one), costs.bytes(one), one.size * layer_seconds) for one in blocks]
    # Before the search, which has the most to look at where nothing fits.
    _check_room(costs, blocks, shards, machines, reserve_bytes)
    found = best_assignment(sizes, shards, machines, reserve_bytes)
    if not found.stages:
        raise _unfit(shards, reserve_bytes, found.proven)
    stages = []
    for first, last, machine in found.stages:
        stretch = LayerRange(blocks[first].start, blocks[last - 1].end)
        weights = costs.weight_bytes(stretch)
        caches = costs.bytes(stretch) - weights
        stages.append(Stage(stretch, machine, weights, caches, reserve_bytes, layer_seconds))
    return Split(tuple(stages), found.proven)


def _blocks(costs: Costs) -> list[LayerRange]:
    """The smallest stretches between which the model may be cut."""
    n_layers = costs.n_layers
    cuts = [0, *(cut for cut in range(1, n_layers) if costs.runs_alone(LayerRange(cut, n_layers))), n_layers]
    return [LayerRange(start, end) for start, end in itertools.pairwise(cuts)]


def _given(costs: Costs, layers: Sequence[LayerRange]) -> list[LayerRange]:
    ends = [0, *(stretch.end for stretch in layers)]
    if [stretch.start for stretch in layers] != ends[:-1] or ends[-1] != costs.n_layers:
        named = ",".join(str(stretch) for stretch in layers)
        raise SplitRefused(f"The stretches {named} are not all of the layers 0:{costs.n_layers}, one after the other.")
    for stretch in layers:
        if not costs.runs_alone(stretch):
            raise SplitRefused(f"The layers {stretch} need keys of others: they cannot run alone.")
    return list(layers)


def _check_room(
    costs: Costs, blocks: Sequence[LayerRange], shards: int, machines: Sequence[Machine], reserve_bytes: int
) -> None:
    """Raises SplitRefused where all together, or what cannot be cut, takes more than there is."""
    about = f"{human_bytes(reserve_bytes)} for Python and torch"
    needed = costs.bytes(LayerRange(0, costs.n_layers)) + shards * reserve_bytes
    there = sum(machine.memory_bytes for machine in machines)
    if needed > there:
        raise SplitRefused(
            f"The weights, one longest text and, for each of {shards} stages, {about} take {human_bytes(needed)}; the "
            f"machines have {human_bytes(there)}: {human_bytes(needed - there)} are missing. Name more machines or "
            "memory, a shorter context, or 16 bit."
        )
    largest = max(blocks, key=costs.bytes)
    alone, most = costs.bytes(largest) + reserve_bytes, max(machine.memory_bytes for machine in machines)
    if alone > most:
        raise SplitRefused(
            f"The layers {largest} cannot be cut and take {human_bytes(alone)} with one longest text and {about}; no "
            f"machine has more than {human_bytes(most)}: {human_bytes(alone - most)} are missing."
        )


def _unfit(shards: int, reserve_bytes: int, proven: bool) -> SplitRefused:
    no_cut = f"no cut into {shards} stages fits" if proven else f"no cut into {shards} stages that fits was found"
    bound = "" if proven else " The search is bounded, so there may be one: --layers can name it."
    return SplitRefused(
        f"The memory of these machines would be enough in all, but {no_cut}: every stage takes "
        f"{human_bytes(reserve_bytes)} for Python and torch, and the last the output head. Name another number of "
        f"stages, or machines with more memory.{bound}"
    )
