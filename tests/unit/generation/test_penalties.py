from __future__ import annotations

from generation.penalties import FIRST_SECONDS, FORGOTTEN_SECONDS, LONGEST_SECONDS, MOST_FAULTS, Penalties
from tests.conftest import Clock

NODE = "http://a"


def test_a_fault_is_held_against_its_node_alone_and_for_a_while(clock: Clock) -> None:
    penalties = Penalties(clock=clock)
    penalties.fail(NODE)
    assert (penalties.faults(NODE), penalties.faults("http://b")) == (1, 0)
    clock.advance(FIRST_SECONDS * 0.99)
    assert penalties.faults(NODE) == 1
    clock.advance(FIRST_SECONDS * 0.01)
    assert penalties.faults(NODE) == 0


def test_each_further_fault_is_held_twice_as_long_up_to_a_bound(clock: Clock) -> None:
    penalties = Penalties(clock=clock)
    held = []
    for _ in range(MOST_FAULTS):
        penalties.fail(NODE)
        begun = clock.now
        while penalties.faults(NODE):
            clock.advance(1.0)
        held.append(clock.now - begun)
    assert held[:4] == [FIRST_SECONDS * factor for factor in (1, 2, 4, 8)]
    assert max(held) == held[-1] == LONGEST_SECONDS


def test_faults_in_a_row_weigh_more(clock: Clock) -> None:
    penalties = Penalties(clock=clock)
    for expected in (1, 2, 3):
        penalties.fail(NODE)
        assert penalties.faults(NODE) == expected
    for _ in range(2 * MOST_FAULTS):
        penalties.fail(NODE)
    assert penalties.faults(NODE) == MOST_FAULTS


def test_a_good_step_ends_the_row(clock: Clock) -> None:
    penalties = Penalties(clock=clock)
    penalties.fail(NODE)
    penalties.fail(NODE)
    penalties.work(NODE)
    assert penalties.faults(NODE) == 0
    penalties.fail(NODE)
    assert penalties.faults(NODE) == 1


def test_old_faults_are_forgotten(clock: Clock) -> None:
    penalties = Penalties(clock=clock)
    for _ in range(5):
        penalties.fail(NODE)
    clock.advance(FORGOTTEN_SECONDS)
    penalties.fail(NODE)
    assert penalties.faults(NODE) == 1


def test_some_faults_are_held_for_longer_than_others(clock: Clock) -> None:
    ways = Penalties(first_seconds=10.0, longest_seconds=15.0, clock=clock)
    ways.fail(NODE)
    clock.advance(9)
    assert ways.faults(NODE) == 1
    clock.advance(2)
    assert ways.faults(NODE) == 0
    ways.fail(NODE)
    clock.advance(14)
    assert ways.faults(NODE) == 2
    clock.advance(2)
    assert ways.faults(NODE) == 0


def test_all_faults_that_are_held_can_be_asked_for_at_once(clock: Clock) -> None:
    penalties = Penalties(clock=clock)
    assert penalties.held() == {}
    penalties.fail("http://old")
    clock.advance(FIRST_SECONDS)
    penalties.fail(NODE)
    penalties.fail(NODE)
    assert penalties.held() == {NODE: 2}
