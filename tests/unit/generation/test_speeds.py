from __future__ import annotations

import pytest

from generation.speeds import BELIEVED_SECONDS, NodeSpeeds
from nodes.wire import Timings
from tests.conftest import Clock

NODE = "http://a"


def test_nothing_is_known_of_a_node_that_was_never_asked(clock: Clock) -> None:
    speeds = NodeSpeeds(clock=clock)
    assert (speeds.hop_ms(NODE), speeds.layer_ms(NODE), speeds.expected_seconds(NODE, 4, 1)) == (None, None, 0.0)


def test_a_step_is_divided_into_trip_queue_and_layers(clock: Clock) -> None:
    speeds = NodeSpeeds(clock=clock)
    speeds.add(NODE, layers=4, tokens=1, total_ms=30.0, timings=Timings(queue_ms=5.0, compute_ms=20.0))
    assert speeds.hop_ms(NODE) == 5.0
    assert speeds.layer_ms(NODE) == 5.0
    assert speeds.expected_seconds(NODE, 8, 1) == pytest.approx(0.050)


def test_prompts_are_expected_by_prompts_and_tokens_by_tokens(clock: Clock) -> None:
    speeds = NodeSpeeds(clock=clock)
    speeds.add(NODE, layers=2, tokens=100, total_ms=200.0, timings=Timings(0.0, 200.0))
    assert speeds.layer_ms(NODE) is None
    assert speeds.expected_seconds(NODE, 2, 1) == 0.0
    assert speeds.expected_seconds(NODE, 4, 50) == pytest.approx(0.2)


def test_the_newest_steps_decide(clock: Clock) -> None:
    speeds = NodeSpeeds(clock=clock)
    for milliseconds in [10.0] * 5 + [40.0] * 60:
        speeds.add(NODE, 1, 1, milliseconds, Timings(0.0, milliseconds))
    assert speeds.layer_ms(NODE) == pytest.approx(40.0, rel=0.01)


def test_a_measurement_is_believed_for_a_while(clock: Clock) -> None:
    speeds = NodeSpeeds(clock=clock)
    speeds.add(NODE, 1, 1, 10.0, Timings(0.0, 10.0))
    clock.advance(BELIEVED_SECONDS)
    assert speeds.layer_ms(NODE) == 10.0
    clock.advance(1)
    assert speeds.layer_ms(NODE) is None
    speeds.add(NODE, 1, 1, 50.0, Timings(0.0, 50.0))
    assert speeds.layer_ms(NODE) == 50.0, "the old one is not mixed in"


def test_a_node_that_started_anew_is_measured_anew(clock: Clock) -> None:
    speeds = NodeSpeeds(clock=clock)
    speeds.add(NODE, 1, 1, 10.0, Timings(0.0, 10.0))
    speeds.forget(NODE)
    assert speeds.layer_ms(NODE) is None


def test_all_that_is_known_can_be_asked_for_at_once(clock: Clock) -> None:
    speeds = NodeSpeeds(clock=clock)
    speeds.add("http://old", 1, 1, 4.0, Timings(0.0, 3.0))
    clock.advance(BELIEVED_SECONDS)
    speeds.add(NODE, 1, 1, 3.0, Timings(0.0, 2.0))
    speeds.add("http://prompt", 2, 100, 200.0, Timings(0.0, 200.0))
    assert speeds.known() == {"http://old": (1.0, 3.0), NODE: (1.0, 2.0), "http://prompt": (None, None)}
    clock.advance(1.0)
    assert set(speeds.known()) == {NODE, "http://prompt"}
