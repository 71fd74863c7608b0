from __future__ import annotations

import math
from dataclasses import replace

import pytest

from meshsite.bench.scale import MEASURES, QUICK, Scale, rounds, turned, wanted
from tests.conftest import Clock


def test_all_measures_run_when_none_is_named() -> None:
    assert wanted([]) == list(MEASURES)


def test_measures_and_ratios_may_be_named_and_run_in_their_own_order() -> None:
    assert wanted(["agg8_vs_generate", "agg16_vs_generate", "decode"]) == ["decode", "sessions"]


def test_a_name_that_means_nothing_is_told() -> None:
    with pytest.raises(KeyError, match="agg9"):
        wanted(["decode", "agg9"])


def test_a_short_context_leaves_longer_texts_out() -> None:
    scale = Scale().fits(512)
    assert scale.lengths == (32, 128)
    assert scale.prompts == (32,)
    assert scale.stall_prompt < 512
    assert Scale().fits(8192) == Scale()


def test_each_contender_begins_a_round_in_turn() -> None:
    assert [turned(["a", "b", "c"], number) for number in range(4)] == [
        ["a", "b", "c"],
        ["b", "c", "a"],
        ["c", "a", "b"],
        ["a", "b", "c"],
    ]
    assert turned([], 1) == []


def test_rounds_end_early_when_the_time_is_over_but_one_is_always_taken(clock: Clock) -> None:
    taken = []
    for number in rounds(replace(QUICK, rounds=5, seconds=10.0), clock=clock):
        taken.append(number)
        clock.advance(6)
    assert taken == [0, 1]
    for number in rounds(replace(QUICK, seconds=0.0), clock=clock):
        taken.append(number)
    assert taken == [0, 1, 0]


def test_all_rounds_are_taken_without_a_limit(clock: Clock) -> None:
    taken = 0
    for _ in rounds(Scale(), clock=clock):
        taken += 1
        clock.advance(1e9)
    assert taken == 5


def test_no_limit_is_null_in_json() -> None:
    assert Scale().seconds == math.inf
    assert Scale().as_json()["seconds"] is None
    assert QUICK.as_json()["seconds"] == QUICK.seconds
