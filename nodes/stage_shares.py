"""What the searches behind a split deal with: blocks, shares of machines, and how much they may look at. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf

from nodes.machines import Machine

#: Blocks [first, last), and the share of the machine on which they run.
Placed = tuple[int, int, Machine]


@dataclass(frozen=True)
class Block:
    """What is not cut. `bytes` is what it takes of a stage's memory, its weights included; `seconds` what it takes on
    any machine besides reading its weights.
    """

    weight_bytes: int
    bytes: int
    seconds: float = 0.0


@dataclass(frozen=True)
class Found:
    """A cut: its slowest stage, all stages together, and the stages themselves."""

    worst: float = inf
    total: float = inf
    stages: tuple[Placed, ...] = ()

    @property
    def rank(self) -> tuple[float, float]:
        return self.worst, self.total


class Row:
    """Blocks in a row, as sums from its start: `bytes[b] - bytes[a]` is what the blocks [a, b) take."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.weights = [0, *accumulate(block.weight_bytes for block in blocks)]
        self.fixed = [0.0, *accumulate(block.seconds for block in blocks)]
        self.bytes = [0, *accumulate(block.bytes for block in blocks)]
        self.smallest_bytes = min(block.bytes for block in blocks)
        self.count = len(blocks)

    def seconds(self, first: int, last: int, speed: float) -> float:
        return (self.weights[last] - self.weights[first]) / speed + (self.fixed[last] - self.fixed[first])


class StepsSpent(Exception):  # reads as what happened
    """A search has looked at as much as it may."""


class Steps:
    """How much a search may still look at. Counted, not timed: the same numbers give the same plan everywhere."""

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise StepsSpent


def share(machine: Machine, parts: int) -> Machine:
    """One of so many equal parts of a machine."""
    return replace(
        machine,
        memory_bytes=machine.memory_bytes // parts,
        bytes_per_second=machine.bytes_per_second / parts,
        cpus=machine.cpus / parts,
        gpus=machine.gpus / parts,
    )
