from __future__ import annotations

from collections.abc import Sequence

import pytest

from meshsite.engine import EngineRefused, NodeSpec, Stand
from meshsite.replicas import OrderRefused, Progress, Replicas
from tests.unit.meshsite.fake_engine import FakeEngine, Names


class Stage:
    def __init__(self, wanted: int = 1) -> None:
        self.engine = FakeEngine()
        self.said: list[str] = []
        self.replicas = Replicas(self.engine, Names().make, self.said.append, wanted=wanted, most=4)

    def started(self) -> Stage:
        self.replicas.step()
        self.engine.all_serve()
        self.replicas.step()
        assert self.progress is Progress.REACHED
        return self

    @property
    def progress(self) -> Progress:
        return self.replicas.last_order.progress


@pytest.fixture
def stage() -> Stage:
    return Stage().started()


def test_at_the_start_all_replicas_are_added_and_the_number_is_reached_once_they_serve() -> None:
    stage = Stage(wanted=2)
    stage.replicas.step()
    assert list(stage.engine.nodes) == ["node1", "node2", "node3", "node4"]
    assert stage.progress is Progress.UNDER_WAY
    stage.engine.all_serve()
    stage.replicas.step()
    assert stage.progress is Progress.REACHED
    assert (stage.replicas.standing, stage.replicas.serving) == (2, 2)


def test_up_adds_whole_replicas_at_once(stage: Stage) -> None:
    stage.replicas.order(3)
    stage.replicas.step()
    assert stage.engine.replicas() == [1, 2, 3]
    assert (stage.replicas.standing, stage.replicas.serving) == (3, 1)
    stage.replicas.step()
    assert len(stage.engine.nodes) == 6, "what is on its way is not added again"
    stage.engine.all_serve()
    stage.replicas.step()
    assert stage.progress is Progress.REACHED


def test_down_retires_the_newest_and_is_reached_once_they_have_left() -> None:
    stage = Stage(wanted=3).started()
    stage.replicas.order(1)
    stage.replicas.step()
    assert stage.engine.replicas() == [1]
    assert stage.progress is Progress.UNDER_WAY
    stage.engine.all_leave()
    stage.replicas.step()
    assert stage.progress is Progress.REACHED


def test_down_keeps_the_replicas_that_serve_whole() -> None:
    stage = Stage(wanted=3).started()
    stage.engine.become("node1", Stand.WAITING, "it ended")
    stage.replicas.order(2)
    stage.replicas.step()
    assert stage.engine.replicas() == [2, 3]
    stage.engine.become("node5", Stand.REFUSED, "no")
    stage.replicas.order(1)
    stage.replicas.step()
    assert stage.engine.replicas() == [2]


def test_a_later_order_supersedes_one_that_is_under_way(stage: Stage) -> None:
    first = stage.replicas.order(3)
    stage.replicas.step()
    second = stage.replicas.order(2)
    stage.replicas.step()
    assert second.number == first.number + 1
    assert stage.engine.replicas() == [1, 2]
    stage.engine.all_leave()
    stage.engine.all_serve()
    stage.replicas.step()
    assert (stage.replicas.last_order.replicas, stage.progress) == (2, Progress.REACHED)


def test_up_again_while_a_replica_leaves_makes_a_new_one_and_lets_that_one_go() -> None:
    stage = Stage(wanted=2).started()
    stage.replicas.order(1)
    stage.replicas.step()
    stage.replicas.order(2)
    stage.replicas.step()
    assert stage.engine.replicas() == [1, 3]
    stage.engine.all_serve()
    stage.replicas.step()
    assert stage.progress is Progress.UNDER_WAY
    stage.engine.all_leave()
    stage.replicas.step()
    assert stage.progress is Progress.REACHED
    stage.replicas.order(3)
    stage.replicas.step()
    assert stage.engine.replicas() == [1, 2, 3], "the smallest free number"


def test_a_node_that_refuses_ends_the_order_and_takes_all_that_came_for_it_along(stage: Stage) -> None:
    stage.replicas.order(3)
    stage.replicas.step()
    stage.engine.become("node4", Stand.REFUSED, "the shoe does not fit")
    stage.replicas.step()
    assert stage.progress is Progress.FAILED
    assert stage.replicas.last_order.reason == "node4: the shoe does not fit"
    assert stage.engine.replicas() == [1]
    stage.engine.all_leave()
    stage.replicas.step()
    assert list(stage.engine.nodes) == ["node1", "node2"], "it is not tried again by itself"
    assert stage.said == ["3 replicas cannot be had: node4: the shoe does not fit"]


def test_an_engine_that_refuses_ends_the_order_too(stage: Stage) -> None:
    stage.engine.refuses = "No machine has room for it."
    stage.replicas.order(2)
    stage.replicas.step()
    assert (stage.progress, stage.replicas.last_order.reason) == (Progress.FAILED, "No machine has room for it.")


def test_what_an_engine_began_before_it_refused_is_taken_away(stage: Stage) -> None:
    add = stage.engine.add

    def add_half(specs: Sequence[NodeSpec]) -> None:
        add(specs[:1])
        raise EngineRefused("There is no free port.")

    stage.engine.add = add_half  # type: ignore[method-assign]
    stage.replicas.order(2)
    stage.replicas.step()
    assert stage.progress is Progress.FAILED
    assert stage.engine.replicas() == [1]


def test_an_engine_that_refuses_the_start_is_whoever_starts_ones_to_hear_of() -> None:
    stage = Stage()
    stage.engine.refuses = "No machine has room for it."
    with pytest.raises(EngineRefused, match="No machine has room"):
        stage.replicas.step()


def test_an_old_node_that_refuses_does_not_undo_what_came_but_is_said() -> None:
    stage = Stage().started()
    stage.engine.become("node1", Stand.REFUSED, "its weights have changed")
    stage.replicas.order(2)
    stage.replicas.step()
    stage.engine.all_serve()
    stage.replicas.step()
    assert stage.progress is Progress.FAILED
    assert stage.replicas.last_order.reason == "node1: its weights have changed"
    assert stage.engine.replicas() == [1, 2]


def test_a_replica_that_does_not_serve_any_more_is_the_first_to_go() -> None:
    stage = Stage(wanted=3).started()
    stage.engine.become("node3", Stand.REFUSED, "its weights have changed")
    stage.replicas.order(2)
    stage.replicas.step()
    assert stage.engine.replicas() == [1, 3]


def test_a_node_that_is_started_again_does_not_count_as_serving(stage: Stage) -> None:
    stage.engine.become("node2", Stand.WAITING)
    stage.replicas.step()
    assert (stage.replicas.standing, stage.replicas.serving) == (1, 0)


@pytest.mark.parametrize("number", [0, -1, 5])
def test_a_number_out_of_bounds_changes_nothing(stage: Stage, number: int) -> None:
    with pytest.raises(OrderRefused, match=f"This mesh can have 1 to 4 replicas, not {number}"):
        stage.replicas.order(number)
    assert stage.progress is Progress.REACHED
