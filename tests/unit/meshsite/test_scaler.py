from __future__ import annotations

from typing import Any

import pytest

from meshsite.autoscaling import DOWN_SECONDS, FIRST_PAUSE_SECONDS, UP_SECONDS, Autoscaling, Load
from meshsite.control_socket import ControlRefused
from meshsite.engine import Stand
from meshsite.replicas import OrderRefused, Progress, Replicas
from meshsite.scaler import STUCK_SECONDS, Scaler
from tests.conftest import Clock
from tests.unit.meshsite.fake_engine import FakeEngine, Names

BUSY, CALM = Load(3, 8, 8), Load(0, 0, 8)


class Stage:
    """A scaler over an engine whose nodes serve and leave at once, unless a test says otherwise."""

    def __init__(self, clock: Clock, most: int | None) -> None:
        self.clock = clock
        self.engine = FakeEngine()
        self.said: list[str] = []
        self.load: Load | None = CALM
        self.has_room = True
        self.replicas = Replicas(self.engine, Names().make, self.said.append, wanted=1, most=16)
        self.autoscaling = None if most is None else Autoscaling(1, most)
        self.scaler = Scaler(
            self.replicas, self.said.append, autoscaling=self.autoscaling, look=lambda: self.load, clock=clock
        )
        self.live(2)

    def live(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.scaler.step()
            if self.has_room:
                self.engine.all_serve()
            self.engine.all_leave()
            self.clock.advance(1)
        self.scaler.step()


@pytest.fixture
def fixed(clock: Clock) -> Stage:
    return Stage(clock, None)


@pytest.fixture
def elastic(clock: Clock) -> Stage:
    return Stage(clock, 3)


def test_without_autoscaling_an_order_is_the_number_whatever_waits(fixed: Stage) -> None:
    fixed.load = BUSY
    fixed.scaler.order(2)
    fixed.live(1000)
    assert fixed.engine.replicas() == [1, 2]


def test_what_waits_for_long_brings_another_replica_and_quiet_takes_it_away(elastic: Stage) -> None:
    elastic.load = BUSY
    elastic.live(UP_SECONDS + 2)
    assert elastic.engine.replicas() == [1, 2]
    assert elastic.said == ["From 1 to 2 replicas: generations have been waiting."]
    elastic.load = CALM
    elastic.live(DOWN_SECONDS + 5)
    assert elastic.engine.replicas() == [1]
    assert elastic.said[-1] == "From 2 to 1 replicas: one fewer has been enough for long."


def test_while_replicas_come_or_nodes_are_started_again_nothing_more_is_decided(elastic: Stage) -> None:
    elastic.engine.become("node1", Stand.WAITING)
    elastic.load = BUSY
    elastic.live(10 * UP_SECONDS)
    assert elastic.engine.replicas() == [1]


def test_an_order_under_autoscaling_is_the_lower_bound(elastic: Stage) -> None:
    elastic.scaler.order(2)
    elastic.live(3 * DOWN_SECONDS)
    assert elastic.engine.replicas() == [1, 2]
    elastic.load = Load(0, 8, 8)
    elastic.live(2)
    elastic.load = CALM
    elastic.scaler.order(1)
    elastic.live(2)
    assert elastic.engine.replicas() == [1, 2], "what is there stays as long as the load wants it"
    elastic.live(DOWN_SECONDS + 5)
    assert elastic.engine.replicas() == [1]


def test_an_order_above_the_upper_bound_is_refused(elastic: Stage) -> None:
    with pytest.raises(OrderRefused, match=r"1 to 3 replicas \(--max-replicas\), not 4"):
        elastic.scaler.order(4)
    assert elastic.autoscaling is not None
    assert elastic.autoscaling.least == 1


def test_an_order_that_failed_leaves_the_bound_as_it_was(elastic: Stage) -> None:
    elastic.engine.refuses = "no room"
    elastic.scaler.order(3)
    elastic.live(2)
    assert elastic.replicas.last_order.progress is Progress.FAILED
    assert elastic.autoscaling is not None
    assert elastic.autoscaling.least == 1


def test_a_step_up_that_failed_is_not_tried_again_at_once(elastic: Stage) -> None:
    elastic.load = BUSY
    elastic.engine.refuses = "no room"
    elastic.live(UP_SECONDS + 2)
    tries = elastic.replicas.last_order.number
    assert elastic.replicas.last_order.progress is Progress.FAILED
    elastic.live(FIRST_PAUSE_SECONDS - UP_SECONDS)
    assert elastic.replicas.last_order.number == tries
    elastic.live(UP_SECONDS + 5)
    assert elastic.replicas.last_order.number == tries + 1


def test_a_step_up_that_finds_no_place_is_taken_back_and_tried_again_after_longer_and_longer_pauses(
    elastic: Stage,
) -> None:
    elastic.load, elastic.has_room = BUSY, False
    elastic.live(UP_SECONDS + 5)
    assert elastic.engine.replicas() == [1, 2]
    elastic.live(STUCK_SECONDS - 10)
    assert elastic.engine.replicas() == [1, 2]
    elastic.live(12)
    assert elastic.engine.replicas() == [1]
    assert "The mesh stays with 1 of 2 replicas" in elastic.said[-1]
    elastic.live(FIRST_PAUSE_SECONDS + 5)
    assert elastic.engine.replicas() == [1, 2]
    elastic.live(STUCK_SECONDS + 5)
    assert elastic.engine.replicas() == [1]
    elastic.live(2 * FIRST_PAUSE_SECONDS - 40)
    assert elastic.engine.replicas() == [1]
    elastic.has_room = True
    elastic.live(45)
    assert elastic.replicas.serving == 2


def test_a_step_that_can_still_serve_the_least_is_not_taken_back_below_it(elastic: Stage) -> None:
    elastic.has_room = False
    elastic.scaler.order(2)
    elastic.live(2 * STUCK_SECONDS)
    assert elastic.engine.replicas() == [1, 2]


@pytest.mark.parametrize("whose", ["an operator's", "its own"])
def test_an_operator_can_take_back_what_finds_no_place(elastic: Stage, whose: str) -> None:
    elastic.has_room = False
    if whose == "its own":
        elastic.load = BUSY
        elastic.live(UP_SECONDS + 5)
    else:
        elastic.scaler.order(3)
        elastic.live(5)
    assert len(elastic.engine.replicas()) > 1
    elastic.load = CALM
    elastic.scaler.order(1)
    elastic.live(3)
    assert elastic.engine.replicas() == [1]
    assert elastic.replicas.last_order.progress is Progress.REACHED


def test_a_replica_that_refuses_for_good_makes_way_and_the_others_are_scaled_as_before(elastic: Stage) -> None:
    elastic.scaler.order(2)
    elastic.live(5)
    elastic.scaler.order(1)
    elastic.live(2)
    elastic.engine.become("node3", Stand.REFUSED, "its weights are gone")
    elastic.live(3)
    assert elastic.engine.replicas() == [1]
    assert elastic.said[-1] == "From 2 to 1 replicas: node3 does not serve (its weights are gone)."
    elastic.load = BUSY
    elastic.live(UP_SECONDS + 3)
    assert elastic.replicas.serving == 2


def test_a_replica_that_refuses_is_replaced_where_the_least_wants_it(elastic: Stage) -> None:
    elastic.scaler.order(2)
    elastic.live(5)
    elastic.engine.become("node3", Stand.REFUSED, "its weights are gone")
    elastic.live(5)
    assert elastic.replicas.serving == 2
    assert "node3" not in elastic.engine.nodes


def test_the_only_replica_is_not_taken_away_when_it_refuses(elastic: Stage) -> None:
    elastic.engine.become("node1", Stand.REFUSED, "its weights are gone")
    elastic.live(5)
    assert elastic.engine.replicas() == [1]


# -- what the control socket asks


def test_status_says_how_things_stand(fixed: Stage) -> None:
    assert fixed.scaler.answer({"do": "status"}) == {
        "replicas": 1,
        "serving": 1,
        "most": 16,
        "autoscaling": None,
        "order": {"number": 0, "replicas": 1, "progress": "reached", "reason": ""},
        "nodes": [
            {
                "name": f"node{stage}", "replica": 1, "layers": layers, "state": "ready",
                "url": f"http://node{stage}", "machine": "", "reason": "",
            }
            for stage, layers in ((1, "0:2"), (2, "2:4"))
        ],
    }  # fmt: skip


def test_with_autoscaling_its_bounds_stand_there(elastic: Stage) -> None:
    report = elastic.scaler.answer({"do": "scale", "replicas": 2})
    assert (report["most"], report["autoscaling"]) == (3, {"least": 2, "most": 3})
    assert report["order"] == {"number": 1, "replicas": 2, "progress": "under_way", "reason": ""}


@pytest.mark.parametrize(
    ("request_", "complaint"),
    [
        ({}, "A mesh is told"),
        ({"do": "dance"}, "A mesh is told"),
        ({"do": ["scale"]}, "A mesh is told"),
        ({"do": "status", "now": 1}, "What is 'now'"),
        ({"do": "scale"}, "How many replicas"),
        ({"do": "scale", "replicas": "2"}, "How many replicas"),
        ({"do": "scale", "replicas": True}, "How many replicas"),
        ({"do": "scale", "replicas": 2.5}, "How many replicas"),
        ({"do": "scale", "replicas": 99}, "1 to 16 replicas, not 99"),
        ({"do": "scale", "replicas": 0}, "1 to 16 replicas, not 0"),
    ],
)
def test_what_cannot_be_met_is_refused_and_changes_nothing(
    fixed: Stage, request_: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ControlRefused, match=complaint):
        fixed.scaler.answer(request_)
    assert fixed.replicas.last_order.number == 0
