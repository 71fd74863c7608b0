"""How many stages each machine may take: the ways that the exact search (nodes/stage_search.py) goes through. Pure.

Machines with equal memory and speed are one kind: the work grows with the number of kinds, not of machines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from nodes.machines import Machine
from nodes.stage_shares import Row, Steps, share

#: (kind, stages that each machine takes, the first of its machines that do, how many do).
_Load = tuple[int, int, int, int]


@dataclass(frozen=True)
class Slots:
    """Equal places for stages: each of these machines takes `each` of them."""

    machines: tuple[Machine, ...]
    each: int = 1

    @property
    def count(self) -> int:
        return len(self.machines) * self.each

    def share(self, index: int = 0) -> Machine:
        """What the index-th of these places is."""
        return share(self.machines[index // self.each], self.each)


def ways(
    row: Row, shards: int, machines: Sequence[Machine], reserve_bytes: int, most: int, steps: Steps
) -> Iterator[list[Slots]]:
    """`most` stages on a machine at most; where that is more than one, places for just `shards` stages.

    Ways whose memory cannot be enough are left out. Raises StepsSpent.
    """
    grouped: dict[tuple[int, float], list[Machine]] = {}
    for machine in machines:
        grouped.setdefault((machine.memory_bytes, machine.bytes_per_second), []).append(machine)
    kinds = list(grouped.values())
    if most == 1:
        steps.take(len(kinds) ** 2 // 16)
        yield [Slots(tuple(kind)) for kind in _needed(kinds, shards)]
        return
    tops = [_top(kind[0].memory_bytes, most, row.smallest_bytes + reserve_bytes) for kind in kinds]
    memories = [kind[0].memory_bytes for kind in kinds]
    needed = row.bytes[-1] + shards * reserve_bytes
    # What the kinds from one on can add.
    places_from = [*accumulate((len(k) * t for k, t in zip(kinds[::-1], tops[::-1], strict=True)), initial=0)][::-1]
    memory_from = [*accumulate((len(k) * m for k, m in zip(kinds[::-1], memories[::-1], strict=True)), initial=0)][::-1]
    stack: list[tuple[int, int, int, int, int, tuple[_Load, ...]]] = [(0, tops[0], 0, shards, 0, ())]
    while stack:
        kind, each, start, left, memory, loads = stack.pop()
        steps.take(1)
        if left == 0:
            if memory >= needed:
                yield [Slots(tuple(kinds[k][at : at + count]), load) for k, load, at, count in loads]
            continue
        free = len(kinds[kind]) - start
        if free * each + places_from[kind + 1] < left:
            continue
        if memory + free * memories[kind] + memory_from[kind + 1] < needed:
            continue
        if each == 0 or free == 0:
            if kind + 1 < len(kinds):
                stack.append((kind + 1, tops[kind + 1], 0, left, memory, loads))
            continue
        for count in range(min(free, left // each) + 1):
            more = ((kind, each, start, count),) if count else ()
            after = memory + count * memories[kind]
            stack.append((kind, each - 1, start + count, left - count * each, after, loads + more))


def _top(memory: int, most: int, smallest: int) -> int:
    """How many stages a machine can take so that each can hold anything."""
    return min(most, memory // smallest) if smallest else most


def _needed(kinds: list[list[Machine]], shards: int) -> list[list[Machine]]:
    """Without machines that `shards` others beat in both memory and speed: one of those is always free instead."""

    def beaten(kind: list[Machine]) -> bool:
        one = kind[0]
        better = (
            len(other)
            for other in kinds
            if other is not kind
            and other[0].memory_bytes >= one.memory_bytes
            and other[0].bytes_per_second >= one.bytes_per_second
        )
        return sum(better) >= shards

    return [kind for kind in kinds if not beaten(kind)]
