from __future__ import annotations

from typing import Any

import pytest

from nodes.pace import Mark, mark_of, pace_of

WORK = {"steps": {"prefill": 2, "decode": 8}, "tokens": 40, "compute_ms": 600.0, "queue_ms": 12.0}


def test_a_mark_holds_the_totals_of_a_status() -> None:
    assert mark_of({"work": WORK}, 5.0) == Mark(5.0, 10, 40, 600.0, 12.0)


@pytest.mark.parametrize("change", [{"tokens": None}, {"steps": [1]}, {"steps": {"decode": True}}, {"queue_ms": "1"}])
def test_odd_totals_give_no_mark(change: dict[str, Any]) -> None:
    assert mark_of({"work": WORK | change}, 0.0) is None
    assert mark_of({}, 0.0) is None


def test_the_pace_is_the_difference_over_the_time() -> None:
    pace = pace_of([Mark(0, 10, 100, 500, 50), Mark(10, 30, 120, 1500, 60)], since=0)
    assert pace is not None
    assert (pace.steps_per_second, pace.tokens_per_second, pace.compute_ms, pace.queue_ms) == (2, 2, 50, 0.5)


def test_an_idle_node_has_a_pace_of_zero_and_no_time_per_step() -> None:
    pace = pace_of([Mark(0, 10, 100, 500, 50), Mark(10, 10, 100, 500, 50)], since=0)
    assert pace is not None
    assert (pace.steps_per_second, pace.compute_ms) == (0, None)


@pytest.mark.parametrize(
    "marks", [[], [Mark(0, 1, 1, 1, 1)], [Mark(0, 9, 9, 9, 9), Mark(5, 1, 1, 1, 1)], [Mark(1, 1, 1, 1, 1)] * 2]
)
def test_there_is_no_pace_without_two_moments_that_go_forwards(marks: list[Mark]) -> None:
    assert pace_of(marks, since=0) is None
