"""The search behind a split (nodes/split.py): blocks in a row, dealt out to machines in stretches. Pure.

1. How many stages a machine may take at most: one, or as few more as are needed for it to fit.
2. A good cut for that (nodes/stage_orders.py), under which the rest need only look for better ones.
3. For each way of sharing the machines (nodes/stage_loads.py): dynamic programming over (machines used, blocks dealt
   out), once for the smallest largest time, and once more for the smallest sum of times among the cuts that have it.

What it looks at is counted and bounded, since no search is quick for any machines whatsoever. Within the bound the
best cut is found and proven; beyond it, the answer is the best that was seen, and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, inf

from nodes.machines import Machine
from nodes.stage_loads import Slots, ways
from nodes.stage_orders import good_cut
from nodes.stage_shares import Block, Found, Placed, Row, Steps, StepsSpent

#: What the exact search looks at in all, and what the one for a good cut does: some seconds.
EXACT_STEPS = 3_000_000
GOOD_STEPS = 800_000
#: How far above the fastest that is thinkable the search looks first: what is tight leaves few cuts to look at.
_WIDTHS = (1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 4.0, 16.0, inf)
#: So that sums of floats in another order do not cut off what is exactly tight.
_ROUNDING = 1 + 1e-9


@dataclass(frozen=True)
class Assignment:
    """`stages` is empty where none was found. `proven`: nothing better is possible; there, none at all."""

    stages: tuple[Placed, ...]
    proven: bool


def best_assignment(
    blocks: Sequence[Block],
    shards: int,
    machines: Sequence[Machine],
    reserve_bytes: int,
    *,
    exact_steps: int = EXACT_STEPS,
    good_steps: int = GOOD_STEPS,
) -> Assignment:
    """The fastest way to deal the blocks out in `shards` stretches that is found within so many steps.

    `reserve_bytes` is what each stage takes besides its blocks.
    """
    row = Row(blocks)
    levels = range(ceil(shards / len(machines)), shards + 1)
    exact_left, good_left, proven = exact_steps, good_steps, True
    for most in levels:
        # Where nothing fits, something must be left for more stages on a machine.
        quick = Steps(good_left if most == levels[-1] else good_left // 4)
        given = quick.left
        good = good_cut(row, shards, machines, reserve_bytes, most, quick)
        good_left -= given - max(0, quick.left)
        steps = Steps(exact_left if good is not None else exact_left // 2)
        given, best = steps.left, good or Found()
        try:
            for slots in ways(row, shards, machines, reserve_bytes, most, steps):
                found = _Search(row, shards, slots, reserve_bytes, steps).run(best.worst)
                if found is not None and found.rank < best.rank:
                    best = found
        except StepsSpent:
            proven = False
        exact_left -= given - max(0, steps.left)
        if best.stages:
            return Assignment(best.stages, proven)
    return Assignment((), proven)


#: (how many of each of the slots are used, blocks dealt out).
_State = tuple[tuple[int, ...], int]
#: The value, and the state and slots that it came from.
_Step = tuple[float, _State, int]
#: (first, last, index of the slots) for each stage.
_Cut = tuple[tuple[int, int, int], ...]


class _Search:
    """One way of sharing the machines."""

    def __init__(self, row: Row, shards: int, slots: Sequence[Slots], reserve_bytes: int, steps: Steps) -> None:
        self._row, self._shards, self._slots, self._steps, self._n = row, shards, slots, steps, row.count
        self._rooms = [slot.share().memory_bytes - reserve_bytes for slot in slots]
        self._speeds = [slot.share().bytes_per_second for slot in slots]
        self._rests: dict[tuple[int, ...], tuple[float, float]] = {}

    def run(self, limit: float) -> Found | None:
        """The fastest cut whose slowest stage takes `limit` at most; None when there is none. Raises StepsSpent."""
        speed, room = self._rest((0,) * len(self._slots), self._shards)
        if room < self._row.bytes[-1] or self._row.weights[-1] > speed * limit * _ROUNDING:
            return None
        ideal = self._row.weights[-1] / speed + self._row.fixed[-1] / self._shards
        for width in _WIDTHS:
            bound = min(limit, ideal * width)
            worst = self._pass(bound, max)
            if worst is not None:
                total = self._pass(worst[0], float.__add__)
                assert total is not None  # noqa: S101  # the cut of the first pass is one
                return Found(worst[0], total[0], self._named(total[1]))
            if bound == limit:
                break
        return None

    def _named(self, cut: _Cut) -> tuple[Placed, ...]:
        used = [0] * len(self._slots)
        placed = []
        for first, last, index in cut:
            placed.append((first, last, self._slots[index].share(used[index])))
            used[index] += 1
        return tuple(placed)

    def _pass(self, limit: float, join: Callable[[float, float], float]) -> tuple[float, _Cut] | None:
        """The smallest joined time of all stages, none of which takes longer than `limit`, and its stages."""
        row = self._row
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
                    self._steps.take(1 + len(self._slots) // 16)
                    for last, seconds in self._ends(index, first, left, limit):
                        self._steps.take(1)
                        if row.weights[-1] - row.weights[last] > most_weight * limit * _ROUNDING:
                            continue
                        if row.bytes[-1] - row.bytes[last] > most_bytes:
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
            self._steps.take(1 + len(self._slots) // 2)
            free = [slot.count - taken for slot, taken in zip(self._slots, used, strict=True)]
            found = self._rests[used] = _largest(self._speeds, free, left), _largest(self._rooms, free, left)
        return found

    def _ends(self, index: int, first: int, left: int, limit: float) -> Iterator[tuple[int, float]]:
        """Where a stage on one of these slots may end, with its seconds; `left` blocks at least are for others."""
        for last in range(first + 1 if left else self._n, self._n - left + 1):
            seconds = self._row.seconds(first, last, self._speeds[index])
            if seconds > limit or self._row.bytes[last] - self._row.bytes[first] > self._rooms[index]:
                return
            yield last, seconds


def _largest(values: Sequence[float], counts: Sequence[int], most: int) -> float:
    """The sum of the `most` largest values, each of which is there so many times."""
    total = 0.0
    for value, count in sorted(zip(values, counts, strict=True), reverse=True):
        total += value * min(count, most)
        most -= min(count, most)
    return total
