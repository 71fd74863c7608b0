"""The search behind a split (nodes/split.py): blocks in a row, dealt out to machines in stretches. Pure.

1. How many stages each machine takes: one at most, or as few more as are needed for it to fit.
2. For each such way: dynamic programming over (machines used, blocks dealt out), once for the smallest largest time,
   and once more for the smallest sum of times among the cuts that have it.

Machines with equal memory and speed are one kind: the work grows with the number of kinds, not of machines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, combinations_with_replacement, product
from math import ceil, inf

from nodes.machines import Machine

#: Blocks [first, last), and the share of the machine on which they run.
Placed = tuple[int, int, Machine]
#: How far above the fastest that is thinkable the search looks first: what is tight leaves few cuts to look at.
_WIDTHS = (1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 4.0, 16.0, inf)
#: So that sums of floats in another order do not cut off what is exactly tight.
_ROUNDING = 1 + 1e-9


@dataclass(frozen=True)
class Block:
    """What is not cut. `bytes` is what it takes of a stage's memory, its weights included; `seconds` what it takes on
    any machine besides reading its weights.
    """

    weight_bytes: int
    bytes: int
    seconds: float = 0.0


@dataclass(frozen=True)
class _Slots:
    """Equal places for stages: each of these machines takes `each` of them."""

    machines: tuple[Machine, ...]
    each: int = 1

    @property
    def count(self) -> int:
        return len(self.machines) * self.each

    def share(self, index: int = 0) -> Machine:
        """What the index-th of these places is."""
        machine = self.machines[index // self.each]
        return replace(
            machine,
            memory_bytes=machine.memory_bytes // self.each,
            bytes_per_second=machine.bytes_per_second / self.each,
            cpus=machine.cpus / self.each,
            gpus=machine.gpus / self.each,
        )


@dataclass(frozen=True)
class _Found:
    worst: float
    total: float
    #: (first, last, index of the slots) for each stage.
    stages: tuple[tuple[int, int, int], ...] = ()

    @property
    def rank(self) -> tuple[float, float]:
        return self.worst, self.total


def best_assignment(
    blocks: Sequence[Block], shards: int, machines: Sequence[Machine], reserve_bytes: int
) -> list[Placed] | None:
    """The fastest way to deal the blocks out in `shards` stretches; None when none fits.

    `reserve_bytes` is what each stage takes besides its blocks.
    """
    for most in range(ceil(shards / len(machines)), shards + 1):
        best, chosen = _Found(inf, inf), None
        for slots in _ways(machines, shards, most):
            found = _Search(blocks, shards, slots, reserve_bytes).run(best.worst)
            if found is not None and found.rank < best.rank:
                best, chosen = found, slots
        if chosen is not None:
            return _named(best, chosen)
    return None


def _ways(machines: Sequence[Machine], shards: int, most: int) -> Iterator[list[_Slots]]:
    """How many stages each machine may take: `most` at most, and where it is more than one, `shards` in all."""
    kinds: dict[tuple[int, float], list[Machine]] = {}
    for machine in machines:
        kinds.setdefault((machine.memory_bytes, machine.bytes_per_second), []).append(machine)
    if most == 1:
        yield [_Slots(tuple(kind)) for kind in _needed(list(kinds.values()), shards)]
        return
    loads = [list(combinations_with_replacement(range(most, -1, -1), len(kind))) for kind in kinds.values()]
    for way in product(*loads):
        if sum(sum(load) for load in way) != shards:
            continue
        slots = []
        for kind, load in zip(kinds.values(), way, strict=True):
            start = 0
            for each, count in sorted(Counter(load).items(), reverse=True):
                if each:
                    slots.append(_Slots(tuple(kind[start : start + count]), each))
                start += count
        yield slots


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


def _named(found: _Found, slots: list[_Slots]) -> list[Placed]:
    used = [0] * len(slots)
    placed = []
    for first, last, index in found.stages:
        placed.append((first, last, slots[index].share(used[index])))
        used[index] += 1
    return placed


#: (how many of each of the slots are used, blocks dealt out).
_State = tuple[tuple[int, ...], int]
#: The value, and the state and slots that it came from.
_Step = tuple[float, _State, int]


class _Search:
    """One way of sharing the machines."""

    def __init__(self, blocks: Sequence[Block], shards: int, slots: Sequence[_Slots], reserve_bytes: int) -> None:
        self._shards, self._slots, self._n = shards, slots, len(blocks)
        self._weights = [0, *accumulate(block.weight_bytes for block in blocks)]
        self._fixed = [0.0, *accumulate(block.seconds for block in blocks)]
        self._bytes = [0, *accumulate(block.bytes for block in blocks)]
        self._rooms = [slot.share().memory_bytes - reserve_bytes for slot in slots]
        self._speeds = [slot.share().bytes_per_second for slot in slots]
        self._rests: dict[tuple[int, ...], tuple[float, float]] = {}

    def run(self, limit: float) -> _Found | None:
        """The fastest cut whose slowest stage takes `limit` at most; None when there is none."""
        ideal = self._weights[-1] / self._rest((0,) * len(self._slots), self._shards)[0]
        ideal += self._fixed[-1] / self._shards
        for width in _WIDTHS:
            bound = min(limit, ideal * width)
            worst = self._pass(bound, max)
            if worst is not None:
                total = self._pass(worst[0], float.__add__)
                assert total is not None  # noqa: S101  # the cut of the first pass is one
                return _Found(worst[0], total[0], total[1])
            if bound == limit:
                break
        return None

    def _pass(
        self, limit: float, join: Callable[[float, float], float]
    ) -> tuple[float, tuple[tuple[int, int, int], ...]] | None:
        """The smallest joined time of all stages, none of which takes longer than `limit`, and its stages."""
        start: _State = ((0,) * len(self._slots), 0)
        steps: list[dict[_State, _Step]] = [{start: (0.0, start, -1)}]
        for left in reversed(range(self._shards)):
            reached: dict[_State, _Step] = {}
            for state, (value, _, _) in steps[-1].items():
                used, first = state
                for index, slot in enumerate(self._slots):
                    if used[index] == slot.count:
                        continue
                    after = (*used[:index], used[index] + 1, *used[index + 1 :])
                    most_weight, most_bytes = self._rest(after, left)
                    for last, seconds in self._ends(index, first, left, limit):
                        if self._weights[-1] - self._weights[last] > most_weight * limit * _ROUNDING:
                            continue
                        if self._bytes[-1] - self._bytes[last] > most_bytes:
                            continue
                        joined = join(value, seconds)
                        if (after, last) not in reached or joined < reached[after, last][0]:
                            reached[after, last] = (joined, state, index)
            steps.append(reached)
        if not steps[-1]:
            return None
        at = min(steps[-1], key=lambda key: (steps[-1][key][0], key))
        value = steps[-1][at][0]
        stages = []
        for reached in reversed(steps[1:]):
            _, before, index = reached[at]
            stages.append((before[1], at[1], index))
            at = before
        return value, tuple(reversed(stages))

    def _rest(self, used: tuple[int, ...], left: int) -> tuple[float, float]:
        """What `left` of the unused slots can take at most: weight in a second, and bytes. A bound, quick to tell."""
        found = self._rests.get(used)
        if found is None:
            free = [slot.count - taken for slot, taken in zip(self._slots, used, strict=True)]
            found = self._rests[used] = _largest(self._speeds, free, left), _largest(self._rooms, free, left)
        return found

    def _ends(self, index: int, first: int, left: int, limit: float) -> Iterator[tuple[int, float]]:
        """Where a stage on one of these slots may end, with its seconds; `left` blocks at least are for others."""
        for last in range(first + 1 if left else self._n, self._n - left + 1):
            seconds = (self._weights[last] - self._weights[first]) / self._speeds[index]
            seconds += self._fixed[last] - self._fixed[first]
            if seconds > limit or self._bytes[last] - self._bytes[first] > self._rooms[index]:
                return
            yield last, seconds


def _largest(values: Sequence[float], counts: Sequence[int], most: int) -> float:
    """The sum of the `most` largest values, each of which is there so many times."""
    total = 0.0
    for value, count in sorted(zip(values, counts, strict=True), reverse=True):
        total += value * min(count, most)
        most -= min(count, most)
    return total
