"""The search within its bound: what it says when it could not look at everything."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodes.machines import Machine
from nodes.stage_loads import ways
from nodes.stage_search import Assignment, best_assignment
from nodes.stage_shares import Block, Row, Steps, StepsSpent

RESERVE = 5
EVEN = [Block(10, 11)] * 60
BLOCKS = st.lists(st.builds(Block, st.integers(1, 20), st.integers(20, 30), st.floats(0, 2)), min_size=4, max_size=8)
MACHINES = st.lists(st.tuples(st.integers(20, 160), st.sampled_from([1.0, 2.0, 2.5, 7.0])), min_size=1, max_size=6)


def rank(found: Assignment, blocks: list[Block]) -> tuple[float, float]:
    times = [
        sum(block.weight_bytes for block in blocks[first:last]) / share.bytes_per_second
        + sum(block.seconds for block in blocks[first:last])
        for first, last, share in found.stages
    ]
    return max(times), sum(times)


def assert_it_fits(found: Assignment, blocks: list[Block], shards: int, machines: list[Machine]) -> None:
    ends = [last for _, last, _ in found.stages]
    assert [first for first, _, _ in found.stages] == [0, *ends[:-1]] and ends[-1] == len(blocks)
    assert len(ends) == shards and all(first < last for first, last, _ in found.stages)
    for machine in machines:
        here = [one for one in found.stages if one[2].name == machine.name]
        assert {one[2].memory_bytes for one in here} <= {machine.memory_bytes // max(1, len(here))}
    for first, last, share in found.stages:
        assert sum(block.bytes for block in blocks[first:last]) + RESERVE <= share.memory_bytes


def nearly_equal(count: int, memory: int) -> list[Machine]:
    """No two of the same kind."""
    chance = random.Random(3)  # noqa: S311
    return [
        Machine(str(index), int(memory * chance.uniform(0.7, 1.3)) + index, chance.uniform(0.7, 1.3))
        for index in range(count)
    ]


@settings(max_examples=100, deadline=None)
@given(BLOCKS, st.integers(1, 4), MACHINES)
def test_what_is_found_without_the_exact_search_fits_and_is_no_better_than_the_best(
    blocks: list[Block], shards: int, sizes: list[tuple[int, float]]
) -> None:
    machines = [Machine(str(index), *size) for index, size in enumerate(sizes)]
    best = best_assignment(blocks, shards, machines, RESERVE)
    quick = best_assignment(blocks, shards, machines, RESERVE, exact_steps=0)
    assert best.proven
    if quick.stages:
        assert_it_fits(quick, blocks, shards, machines)
        assert not quick.proven or not best.stages
        assert best.stages and most_on_one(best) <= most_on_one(quick)
        if most_on_one(best) == most_on_one(quick):
            assert rank(best, blocks) <= (rank(quick, blocks)[0] * (1 + 1e-9), float("inf"))


def most_on_one(found: Assignment) -> int:
    names = [share.name for _, _, share in found.stages]
    return max(names.count(name) for name in names)


@pytest.mark.parametrize(("count", "shards", "memory"), [(16, 16, 70), (24, 12, 90), (8, 12, 130), (5, 60, 1100)])
def test_machines_none_of_which_are_equal_get_a_plan_that_is_called_unproven(
    count: int, shards: int, memory: int
) -> None:
    machines = nearly_equal(count, memory)
    found = best_assignment(EVEN, shards, machines, RESERVE, exact_steps=10_000, good_steps=200_000)
    assert not found.proven
    assert_it_fits(found, EVEN, shards, machines)


def test_a_cut_that_is_not_found_is_not_called_impossible() -> None:
    machines = nearly_equal(16, 48)  # 60 * 11 + 16 * 5 are 740, and some 768 are there
    assert best_assignment(EVEN, 16, machines, RESERVE, exact_steps=1000, good_steps=1000) == Assignment((), False)


def test_a_cut_that_no_way_of_sharing_allows_is_proven_impossible() -> None:
    machines = [Machine(str(index), 27 + index % 2, 1.0) for index in range(30)]  # two blocks each, and two stages none
    assert best_assignment(EVEN, 31, machines, RESERVE) == Assignment((), True)


def test_the_same_machines_get_the_same_plan() -> None:
    machines = nearly_equal(16, 70)
    first, second = (best_assignment(EVEN, 16, machines, RESERVE, exact_steps=1000) for _ in range(2))
    assert first == second


def test_what_is_found_quickly_is_nearly_the_best() -> None:
    machines = nearly_equal(10, 110)
    best = best_assignment(EVEN, 6, machines, RESERVE)
    quick = best_assignment(EVEN, 6, machines, RESERVE, exact_steps=0)
    assert best.proven and not quick.proven
    assert rank(best, EVEN)[0] <= rank(quick, EVEN)[0] <= 1.05 * rank(best, EVEN)[0]


def test_ways_of_sharing_are_counted_too() -> None:
    machines = nearly_equal(40, 100)
    with pytest.raises(StepsSpent):
        list(ways(Row(EVEN), 60, machines, RESERVE, 4, Steps(10_000)))
