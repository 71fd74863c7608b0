"""Copies of one stage lie apart, wherever Ray found room."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshsite.engine import NodeSpec
from meshsite.ray_places import Place, Room, assign, emptiest, fit_in, why_not_placed
from nodes.layers import LayerRange

GIB = 2**30
SMALL = Room(1.0, 0.0, GIB)


def places(*machines: str, room: Room = SMALL) -> list[Place]:
    return [Place(bundle, machine, room) for bundle, machine in enumerate(machines)]


def machines(chosen: dict[int, Place]) -> list[str]:
    return [chosen[stage].machine for stage in sorted(chosen)]


def test_the_first_replica_takes_the_places_as_they_are() -> None:
    assert machines(assign({1: SMALL, 2: SMALL}, places("a", "b"), {})) == ["a", "b"]


def test_a_second_replica_on_the_same_two_machines_is_the_other_way_round() -> None:
    chosen = assign({1: SMALL, 2: SMALL}, places("a", "b"), {1: ["a"], 2: ["b"]})
    assert machines(chosen) == ["b", "a"]
    assert {place.bundle for place in chosen.values()} == {0, 1}


def test_three_stages_change_places_in_a_circle_where_no_two_could_swap() -> None:
    held = {1: ["a", "b"], 2: ["b", "c"], 3: ["c", "a"]}
    assert machines(assign(dict.fromkeys((1, 2, 3), SMALL), places("a", "b", "c"), held)) == ["c", "a", "b"]


def test_a_stage_stays_with_a_copy_of_its_own_when_there_is_no_other_place() -> None:
    assert machines(assign({1: SMALL}, places("a"), {1: ["a"]})) == ["a"]


def test_a_place_that_is_too_small_is_not_taken_even_if_it_lay_apart() -> None:
    large = Room(1.0, 0.0, 2 * GIB)
    found = [Place(0, "a", large), Place(1, "b", SMALL)]
    assert machines(assign({1: large, 2: SMALL}, found, {1: ["a"], 2: ["b"]})) == ["a", "b"]


def test_places_that_cannot_hold_the_stages_are_an_error() -> None:
    with pytest.raises(ValueError, match="too small"):
        assign({1: Room(1.0, 0.0, 2 * GIB)}, places("a"), {})
    with pytest.raises(ValueError, match="2 stages"):
        assign({1: SMALL, 2: SMALL}, places("a"), {})


@given(st.data())
def test_no_other_choice_shares_fewer_machines(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 5))
    names = st.sampled_from("abcd")
    rooms = st.sampled_from([SMALL, Room(1.0, 0.0, 2 * GIB)])
    wanted = {stage: data.draw(rooms) for stage in range(1, size + 1)}
    found = [Place(index, data.draw(names), wanted[index + 1]) for index in range(size)]
    held = {stage: data.draw(st.lists(names, max_size=3)) for stage in wanted}

    def shared(chosen: dict[int, Place]) -> int:
        return sum(held[stage].count(place.machine) for stage, place in chosen.items())

    others: list[dict[int, Place]] = [
        dict(zip(wanted, order, strict=True))
        for order in itertools.permutations(found)
        if all(place.room.holds(wanted[stage]) for stage, place in zip(wanted, order, strict=True))
    ]
    chosen = assign(wanted, found, held)
    assert sorted(place.bundle for place in chosen.values()) == list(range(size))
    assert shared(chosen) == min(map(shared, others))


def test_a_replica_of_one_stage_goes_where_no_copy_is() -> None:
    rooms = {"a": Room(4, 0, 8 * GIB), "b": Room(4, 0, 2 * GIB), "c": Room(4, 0, GIB // 2)}
    assert emptiest(rooms, SMALL, []) == "a"
    assert emptiest(rooms, SMALL, ["a"]) == "b"
    assert emptiest(rooms, SMALL, ["a", "b"]) == "a", "c has no room"
    assert emptiest(rooms, Room(8, 0, 0), []) is None


@pytest.mark.parametrize(
    ("wanted", "there", "words"),
    [
        (SMALL, [], "the cluster has no machine"),
        (Room(1, 0, 4 * GIB), [Room(8, 0, GIB)], "no machine has 4.0 GiB of memory for it, the largest has 1.0 GiB"),
        (Room(1, 1, 0), [Room(8, 0, GIB)], "no machine has 1 GPUs"),
        (
            Room(1, 1, GIB),
            [Room(8, 0, GIB), Room(8, 1, 0)],
            "no machine has 1 CPUs, 1 GPUs, 1.0 GiB of memory together",
        ),
        (SMALL, [Room(8, 0, GIB)], "every machine that is large enough is full"),
    ],
)
def test_it_says_why_a_node_has_no_machine(wanted: Room, there: list[Room], words: str) -> None:
    assert words in why_not_placed([wanted], there)


@pytest.mark.parametrize(
    ("asked", "bundle"),
    [
        ({"memory_bytes": GIB, "cpus": 0.5}, {"CPU": 0.5, "memory": GIB}),
        ({"memory_bytes": GIB, "cpus": 16.0}, {"CPU": 1.0, "memory": GIB}),
        ({"cpus": 0.0}, {"CPU": 0.001}),
        ({"memory_bytes": GIB, "gpus": 0.5}, {"CPU": 1.0, "GPU": 0.5}),
        ({"memory_bytes": GIB, "gpus": 1.5}, {"CPU": 1.0, "GPU": 2.0}),
    ],
)
def test_ray_is_asked_for_what_a_node_cannot_share(asked: dict[str, Any], bundle: dict[str, float]) -> None:
    assert Room.of(NodeSpec("node1", 1, 1, LayerRange(0, 2), {}, **asked)).bundle() == bundle


def test_what_fits_into_what_is_free() -> None:
    machine = Room(2, 1, 8)
    assert fit_in([Room(1, 0, 2), Room(1, 0, 5)], [machine])
    assert fit_in([Room(1, 0, 2), Room(1, 0, 7), Room(1, 1, 0)], [machine, Room(1, 0, 2)])
    assert not fit_in([Room(1, 0, 2), Room(1, 0, 7)], [machine])
    assert not fit_in([Room(1, 0, 1)] * 3, [machine]), "the processors are shared no further"
    assert not fit_in([Room(0.5, 1, 0)] * 2, [machine])
