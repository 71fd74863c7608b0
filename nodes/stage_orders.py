"""A good cut, quickly, though not proven best: machines in an order, each of which takes what it can. Pure.

1. Choose a machine for every stage: by memory, by speed, by both.
2. Under a limit of time, deal the blocks out in that order. While some are left over, swap two stages' machines, or
   give a stage another machine, wherever more blocks are dealt out then.
3. When all are dealt out: lower the limit a little below the slowest stage, and again. Where nothing helps: shuffle
   some, so many times.
"""

from __future__ import annotations

import contextlib
import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from math import inf

from nodes.machines import Machine
from nodes.stage_shares import Found, Placed, Row, Steps, StepsSpent, share

_SHUFFLES = 40
#: How much faster the slowest stage has to become for another order.
_LESS = 0.999
#: Halvings of the span in which the fastest cut for one order is looked for: to a millionth of it.
_HALVINGS = 20


def good_cut(
    row: Row, shards: int, machines: Sequence[Machine], reserve_bytes: int, most: int, steps: Steps
) -> Found | None:
    """The best cut that was found within `steps`, with `most` stages on a machine at most; None when none was."""
    return _Orders(row, shards, machines, reserve_bytes, most, steps).run()


class _Orders:
    def __init__(
        self, row: Row, shards: int, machines: Sequence[Machine], reserve_bytes: int, most: int, steps: Steps
    ) -> None:
        self._row, self._shards, self._machines, self._most = row, shards, machines, most
        self._reserve, self._steps = reserve_bytes, steps
        self._limit = inf
        self._best: list[int] | None = None
        #: For (machine, its stages): where a stage ends that begins with a block, under the limit.
        self._ends: dict[tuple[int, int], list[int]] = {}

    def run(self) -> Found | None:
        with contextlib.suppress(StepsSpent):
            self._look()
        return None if self._best is None else self._finished(self._best)

    def _look(self) -> None:
        starts = [start for start in self._starts() if start is not None]
        for start in starts:
            self._improve(start)
        shuffle = random.Random(1)  # noqa: S311  # the same plan for the same machines
        for number in range(_SHUFFLES if starts else 0):
            order = list(self._best or starts[number % len(starts)])
            for _ in range(2 + number % 3):
                one, other = shuffle.randrange(self._shards), shuffle.randrange(self._shards)
                order[one], order[other] = order[other], order[one]
            self._improve(order)

    def _starts(self) -> Iterator[list[int] | None]:
        room = [machine.memory_bytes for machine in self._machines]
        speed = [machine.bytes_per_second for machine in self._machines]
        yield self._chosen([size / max(room) + pace / max(speed) for size, pace in zip(room, speed, strict=True)])
        yield self._chosen(speed)
        yield self._chosen(room)

    def _chosen(self, values: Sequence[float]) -> list[int] | None:
        """The stage goes where its share is worth most; None when the machines cannot hold so many stages."""
        smallest = self._row.smallest_bytes + self._reserve
        tops = [min(self._most, one.memory_bytes // max(1, smallest)) for one in self._machines]
        counts = [0] * len(tops)
        order = []
        for _ in range(self._shards):
            self._steps.take(len(tops) // 8 + 1)
            free = [index for index, top in enumerate(tops) if counts[index] < top]
            if not free:
                return None
            index = max(free, key=lambda one: values[one] / (counts[one] + 1))
            counts[index] += 1
            order.append(index)
        return order

    def _improve(self, order: list[int]) -> None:
        """Makes the best order and the limit better as long as it can, from this order on."""
        while True:
            dealt = self._dealt(order)
            while dealt < self._row.count:
                better = next(((one, to) for one in self._others(order) if (to := self._dealt(one)) > dealt), None)
                if better is None:
                    return
                order, dealt = better
            self._best = order
            self._limit = self._least(order) * _LESS
            self._ends.clear()

    def _others(self, order: list[int]) -> Iterator[list[int]]:
        for one in range(self._shards):
            for other in range(one + 1, self._shards):
                if order[one] != order[other]:
                    changed = list(order)
                    changed[one], changed[other] = order[other], order[one]
                    yield changed
        counts = Counter(order)
        for index in range(len(self._machines)):
            if counts[index] < self._most:
                for one in range(self._shards):
                    if order[one] != index:
                        yield [*order[:one], index, *order[one + 1 :]]

    def _dealt(self, order: Sequence[int]) -> int:
        """How many blocks are dealt out, from the first on, when every stage takes what it can under the limit."""
        self._steps.take(self._shards)
        counts = Counter(order)
        at = 0
        for left, index in zip(range(self._shards - 1, -1, -1), order, strict=True):
            ends = self._ends.get((index, counts[index]))
            if ends is None:
                ends = self._ends[index, counts[index]] = self._ends_of(index, counts[index])
            end = min(ends[at], self._row.count - left)
            if end <= at:
                return at
            at = end
        return at

    def _ends_of(self, index: int, parts: int) -> list[int]:
        row, machine = self._row, share(self._machines[index], parts)
        self._steps.take(row.count)
        room, speed = machine.memory_bytes - self._reserve, machine.bytes_per_second
        ends, last = [], 0
        for first in range(row.count):
            last = max(last, first)
            most = bisect_right(row.bytes, row.bytes[first] + room) - 1
            while last < most and row.seconds(first, last + 1, speed) <= self._limit:
                last += 1
            ends.append(last)
        return ends

    def _least(self, order: Sequence[int]) -> float:
        """The slowest stage of the fastest cut for this order, which can deal all blocks out under the limit."""
        low, high = 0.0, self._worst(order)
        for _ in range(_HALVINGS):
            self._limit = (low + high) / 2
            self._ends.clear()
            if self._dealt(order) == self._row.count:
                high = self._worst(order)
            else:
                low = self._limit
        return high

    def _worst(self, order: Sequence[int]) -> float:
        """The slowest stage when every stage takes what it can under the limit."""
        counts = Counter(order)
        at, worst = 0, 0.0
        for left, index in zip(range(self._shards - 1, -1, -1), order, strict=True):
            end = min(self._ends[index, counts[index]][at], self._row.count - left)
            speed = self._machines[index].bytes_per_second / counts[index]
            worst = max(worst, self._row.seconds(at, end, speed))
            at = end
        return worst

    def _finished(self, order: Sequence[int]) -> Found:
        """For this order, the cut that takes a single session least among those whose slowest stage is fastest."""
        row, counts = self._row, Counter(order)
        self._steps = Steps(2**62)  # what follows is bounded by the row's length
        self._limit = inf
        self._ends.clear()
        self._dealt(order)
        limit = self._least(order)
        shares = [share(self._machines[index], counts[index]) for index in order]
        sums: list[dict[int, tuple[float, int]]] = [{0: (0.0, 0)}]
        for left, place in zip(range(self._shards - 1, -1, -1), shares, strict=True):
            after: dict[int, tuple[float, int]] = {}
            for first, (value, _) in sums[-1].items():
                for last in range(first + 1, row.count - left + 1):
                    seconds = row.seconds(first, last, place.bytes_per_second)
                    if seconds > limit or row.bytes[last] - row.bytes[first] > place.memory_bytes - self._reserve:
                        break
                    if last not in after or value + seconds < after[last][0]:
                        after[last] = value + seconds, first
            sums.append(after)
        stages: list[Placed] = []
        last = row.count
        for place, reached in zip(reversed(shares), reversed(sums[1:]), strict=True):
            first = reached[last][1]
            stages.append((first, last, place))
            last = first
        worst = max(row.seconds(first, last, place.bytes_per_second) for first, last, place in stages)
        return Found(worst, sums[-1][row.count][0], tuple(reversed(stages)))
