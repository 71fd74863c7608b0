"""The engine's decisions, over a cluster of a test's own: no Ray, no process, no waiting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from meshsite.engine import EngineRefused, NodeSpec, NodeState, Stand
from meshsite.ray_actor import Order
from meshsite.ray_cluster import ActorAway, ActorLost, RayMachine
from meshsite.ray_engine import STOP_SECONDS, RayEngine
from meshsite.ray_places import Room
from meshsite.ray_placing import AGAIN_SECONDS, EXACT_AFTER_SECONDS
from nodes.layers import LayerRange
from nodes.machines import Machine
from tests.conftest import Clock

GIB = 2**30


@dataclass
class FakeActor:
    order: Order
    machine: str
    said: dict[str, Any] | Exception = field(default_factory=dict)
    heard: list[tuple[Any, ...]] = field(default_factory=list)
    is_ended: bool = False


@dataclass
class FakeGroup:
    rooms: list[Room]
    near: str | None
    places: dict[int, str] | None = field(default_factory=dict)
    is_released: bool = False


class FakeCluster:
    """Answers at once with what the test put into `said`; keeps silent where that is empty."""

    address_here = "127.0.0.1"

    def __init__(self, *names: str) -> None:
        self.alive = [
            RayMachine(name, f"machine {name}", f"127.0.0.{index}", Room(8, 0, 8 * GIB))
            for index, name in enumerate(names, 2)
        ]
        self.groups: list[FakeGroup] = []
        self.actors: dict[str, FakeActor] = {}
        self.surveyed: dict[str, dict[str, Any]] = {}
        self.is_closed = False

    def machines(self) -> list[RayMachine]:
        return list(self.alive)

    def free(self) -> dict[str, Room]:
        left = {machine.id: machine.room for machine in self.alive}
        for group in self.groups:
            for bundle, machine in (group.places or {}).items():
                if machine in left and not group.is_released:
                    left[machine] = left[machine].less(group.rooms[bundle])
        return left

    def survey(self, folder: str) -> dict[str, dict[str, Any]]:
        return self.surveyed

    def reserve(self, name: str, rooms: Sequence[Room], near: str | None) -> FakeGroup:
        self.groups.append(FakeGroup(list(rooms), near))
        return self.groups[-1]

    def places(self, group: FakeGroup) -> dict[int, str] | None:
        return group.places

    def start(self, order: Order, group: FakeGroup, bundle: int, room: Room) -> FakeActor:
        assert group.places is not None
        self.actors[order.name] = FakeActor(order, group.places[bundle])
        return self.actors[order.name]

    def call(self, actor: FakeActor, method: str, *arguments: Any) -> Any:
        if method != "look":
            actor.heard.append((method, *arguments))
        return (actor, method)

    def answers(self, calls: Sequence[Any], seconds: float = 0.0) -> list[Any]:
        return [call for call in calls if call[1] != "look" or call[0].said]

    def answer(self, call: Any) -> Any:
        said = call[0].said
        if isinstance(said, Exception):
            raise said
        return {"machine": call[0].machine, "url": "", "reason": "", "lines": [], **said}

    def end(self, actor: FakeActor) -> None:
        actor.is_ended = True

    def release(self, group: FakeGroup) -> None:
        group.is_released = True

    def close(self) -> None:
        self.is_closed = True


class Mesh:
    """An engine of two stages on a cluster of three machines."""

    def __init__(self, clock: Clock) -> None:
        self.cluster = FakeCluster("a", "b", "c")
        self.clock = clock
        self.lines: list[str] = []
        cluster: Any = self.cluster
        self.engine = RayEngine(cluster, Path("/project"), Path("/var"), self.lines.append, clock=clock)

    def add(self, replica: int, *machines: str, stages: int = 2) -> None:
        """A replica whose bundles Ray finds on these machines."""
        names = [f"node{replica}{stage}" for stage in range(1, stages + 1)]
        self.engine.add([spec(name, replica, stage) for stage, name in enumerate(names, 1)])
        self.cluster.groups[-1].places = dict(enumerate(machines))
        self.engine.step()
        for name in names:
            if name in self.cluster.actors:
                self.serve(name)
        self.engine.step()

    def serve(self, name: str) -> None:
        actor = self.cluster.actors[name]
        actor.said = {"stand": "ready", "url": f"http://{actor.machine}:1/{name}"}

    def state(self, name: str) -> NodeState:
        return next(state for state in self.engine.states() if state.name == name)

    def where(self, stage: int) -> list[str]:
        return sorted(actor.machine for name, actor in self.cluster.actors.items() if name.endswith(str(stage)))


def spec(name: str, replica: int, stage: int, **settings: str) -> NodeSpec:
    return NodeSpec(name, replica, stage, LayerRange(stage - 1, stage), {"MESHNET_SECRET": "s", **settings}, GIB)


@pytest.fixture
def mesh(clock: Clock) -> Mesh:
    return Mesh(clock)


def test_a_node_is_placing_starting_and_ready(mesh: Mesh) -> None:
    mesh.engine.add([spec("node11", 1, 1)])
    mesh.engine.step()
    state = mesh.state("node11")
    assert (state.stand, state.url, state.machine) == (Stand.PLACING, "", "")
    assert state.reason.startswith("every machine that is large enough is full")
    mesh.cluster.groups[0].places = {0: "b"}
    mesh.engine.step()
    assert (mesh.state("node11").stand, mesh.state("node11").machine) == (Stand.STARTING, "machine b")
    mesh.serve("node11")
    mesh.engine.step()
    state = mesh.state("node11")
    assert (state.stand, state.url, state.reason) == (Stand.READY, "http://b:1/node11", "")


def test_a_node_that_is_too_large_says_so(mesh: Mesh) -> None:
    large = NodeSpec("node11", 1, 1, LayerRange(0, 1), {}, memory_bytes=100 * GIB)
    mesh.engine.add([large])
    mesh.engine.step()
    assert "no machine has 100 GiB of memory" in mesh.state("node11").reason


def test_the_order_holds_what_the_node_is_told(mesh: Mesh) -> None:
    mesh.add(1, "a", "b")
    order = mesh.cluster.actors["node12"].order
    assert order.settings == {"MESHNET_ROLE": "node", "MESHNET_LAYERS": "1:2", "MESHNET_SECRET": "s"}
    assert (order.folder, order.var_dir, order.only_at) == ("/project", "/var", "")
    assert "MESHNET_SECRET" not in repr(order)


def test_copies_of_a_stage_lie_on_different_machines(mesh: Mesh) -> None:
    mesh.add(1, "a", "b")
    mesh.add(2, "a", "b")
    assert mesh.where(1) == mesh.where(2) == ["a", "b"]


def test_stages_of_different_sizes_can_change_places_too(mesh: Mesh) -> None:
    for replica in (1, 2):
        specs = [replace(spec(f"node{replica}{stage}", replica, stage), memory_bytes=stage * GIB) for stage in (1, 2)]
        mesh.engine.add(specs)
        assert mesh.cluster.groups[-1].rooms == [Room(1, 0, 2 * GIB)] * 2
        mesh.cluster.groups[-1].places = {0: "a", 1: "b"}
        mesh.engine.step()
    assert mesh.where(1) == mesh.where(2) == ["a", "b"]


def test_bundles_are_no_larger_than_needed_when_there_is_no_room_for_equal_ones(mesh: Mesh, clock: Clock) -> None:
    mesh.engine.add([replace(spec(f"node1{stage}", 1, stage), memory_bytes=stage * GIB) for stage in (1, 2)])
    mesh.engine.step()
    clock.advance(EXACT_AFTER_SECONDS)
    mesh.engine.step()
    first, second = mesh.cluster.groups
    assert first.is_released
    assert second.rooms == [Room(1, 0, GIB), Room(1, 0, 2 * GIB)]
    clock.advance(EXACT_AFTER_SECONDS)
    mesh.engine.step()
    assert len(mesh.cluster.groups) == 2


@pytest.fixture
def lopsided(clock: Clock) -> Mesh:
    """Stages of 5 and 2 GiB in bundles of 5 GiB on two machines of 8 GiB, of which the one with the second dies."""
    mesh = Mesh(clock)
    del mesh.cluster.alive[2]
    mesh.engine.add(
        [replace(spec(f"node1{stage}", 1, stage), memory_bytes=size * GIB) for stage, size in ((1, 5), (2, 2))]
    )
    (group,) = mesh.cluster.groups
    assert group.rooms == [Room(1, 0, 5 * GIB)] * 2
    group.places = {0: "a", 1: "b"}
    mesh.engine.step()
    for name in ("node11", "node12"):
        mesh.serve(name)
    mesh.engine.step()
    del mesh.cluster.alive[1]
    group.places = {0: "a"}
    mesh.cluster.actors["node12"].said = {}
    mesh.engine.step()
    assert mesh.state("node12").url == ""
    return mesh


def test_bundles_of_a_replica_that_lost_a_machine_become_smaller_when_that_helps(lopsided: Mesh, clock: Clock) -> None:
    lopsided.engine.step()
    assert len(lopsided.cluster.groups) == 1, "Ray may yet find a place"
    clock.advance(EXACT_AFTER_SECONDS)
    former = dict(lopsided.cluster.actors)
    lopsided.engine.step()
    first, second = lopsided.cluster.groups
    assert first.is_released and all(actor.is_ended for actor in former.values())
    assert second.rooms == [Room(1, 0, 5 * GIB), Room(1, 0, 2 * GIB)]
    assert {state.url for state in lopsided.engine.states()} == {""}
    second.places = {0: "a", 1: "a"}
    lopsided.engine.step()
    assert {(state.stand, state.machine) for state in lopsided.engine.states()} == {(Stand.STARTING, "machine a")}


def test_so_do_those_of_one_that_lost_every_machine(lopsided: Mesh, clock: Clock) -> None:
    lopsided.cluster.alive = [RayMachine("c", "machine c", "127.0.0.9", Room(8, 0, 8 * GIB))]
    lopsided.cluster.groups[0].places = {}
    lopsided.cluster.actors["node11"].said = {}
    lopsided.engine.step()
    clock.advance(EXACT_AFTER_SECONDS)
    lopsided.engine.step()
    assert lopsided.cluster.groups[-1].rooms == [Room(1, 0, 5 * GIB), Room(1, 0, 2 * GIB)]


def test_they_stay_when_that_would_not_help_or_a_place_was_found(lopsided: Mesh, clock: Clock) -> None:
    taken = Room(1, 0, 2 * GIB)
    lopsided.cluster.groups.append(FakeGroup([taken], None, {0: "a"}))  # somebody else's
    for _ in range(3):
        clock.advance(EXACT_AFTER_SECONDS)
        lopsided.engine.step()
    assert len(lopsided.cluster.groups) == 2
    assert lopsided.state("node11").stand is Stand.READY
    lopsided.cluster.groups.pop()
    lopsided.cluster.alive.append(RayMachine("c", "machine c", "127.0.0.9", Room(8, 0, 8 * GIB)))
    lopsided.cluster.groups[0].places = {0: "a", 1: "c"}
    for _ in range(3):
        clock.advance(EXACT_AFTER_SECONDS)
        lopsided.engine.step()
    assert len(lopsided.cluster.groups) == 1


def test_bundles_are_not_equal_where_a_machine_could_not_hold_the_largest(mesh: Mesh) -> None:
    mesh.engine.add([replace(spec(f"node1{stage}", 1, stage), memory_bytes=stage * 5 * GIB) for stage in (1, 2)])
    assert [room.memory_bytes for room in mesh.cluster.groups[0].rooms] == [5 * GIB, 10 * GIB]


def test_a_replica_of_one_stage_is_asked_for_where_no_copy_is(mesh: Mesh) -> None:
    mesh.add(1, "a", stages=1)
    mesh.add(2, "b", stages=1)
    assert [group.near for group in mesh.cluster.groups] == ["a", "b"]


def test_a_machine_that_dies_takes_the_urls_of_its_nodes_with_it(mesh: Mesh) -> None:
    mesh.add(1, "a", "b")
    actor = mesh.cluster.actors["node11"]
    actor.said = ActorAway()
    mesh.engine.step()
    state = mesh.state("node11")
    assert (state.stand, state.url) == (Stand.WAITING, "http://a:1/node11"), "it may serve all the same"
    mesh.cluster.alive = [machine for machine in mesh.cluster.alive if machine.id != "a"]
    mesh.cluster.groups[0].places = {1: "b"}
    mesh.engine.step()
    state = mesh.state("node11")
    assert (state.stand, state.url, state.machine) == (Stand.PLACING, "", "")
    assert mesh.state("node12").stand is Stand.READY


def test_its_node_comes_back_elsewhere_under_another_url(mesh: Mesh) -> None:
    mesh.add(1, "a", "b")
    actor = mesh.cluster.actors["node11"]
    mesh.cluster.alive = [machine for machine in mesh.cluster.alive if machine.id != "a"]
    mesh.cluster.groups[0].places = {0: "c", 1: "b"}
    actor.said = {}
    mesh.engine.step()
    assert mesh.state("node11").url == ""
    actor.machine = "c"
    mesh.serve("node11")
    mesh.engine.step()
    state = mesh.state("node11")
    assert (state.stand, state.url, state.machine) == (Stand.READY, "http://c:1/node11", "machine c")
    assert mesh.cluster.actors["node11"] is actor, "Ray starts it again, not the engine"


def test_nothing_moves_to_a_machine_that_is_back(mesh: Mesh) -> None:
    mesh.add(1, "a", "b")
    actors = dict(mesh.cluster.actors)
    lost = mesh.cluster.alive.pop(0)
    mesh.cluster.groups[0].places = {0: "c", 1: "b"}
    mesh.engine.step()
    actors["node11"].machine = "c"
    mesh.serve("node11")
    mesh.engine.step()
    mesh.cluster.alive.append(lost)
    before = mesh.engine.states()
    for _ in range(3):
        mesh.engine.step()
    assert mesh.engine.states() == before
    assert {state.machine for state in before} == {"machine b", "machine c"}
    assert mesh.cluster.actors == actors
    assert len(mesh.cluster.groups) == 1


def test_last_words_from_a_dead_machine_do_not_bring_its_url_back(mesh: Mesh) -> None:
    mesh.add(1, "a", "b")
    mesh.cluster.alive = [machine for machine in mesh.cluster.alive if machine.id != "a"]
    mesh.engine.step()
    assert mesh.state("node11").url == ""


def test_a_refusal_is_reported_once_and_not_tried_again(mesh: Mesh) -> None:
    mesh.add(1, "a", "b")
    actor = mesh.cluster.actors["node11"]
    actor.said = {"stand": "refused", "reason": "no such model"}
    mesh.engine.step()
    mesh.engine.step()
    assert (mesh.state("node11").stand, mesh.state("node11").reason) == (Stand.REFUSED, "no such model")
    assert mesh.lines == ["node11 cannot serve: no such model. It is not started again."]
    assert mesh.cluster.actors["node11"] is actor


def test_an_actor_that_ray_gives_up_is_made_anew_after_a_while(mesh: Mesh, clock: Clock) -> None:
    mesh.add(1, "a", "b")
    actor = mesh.cluster.actors["node11"]
    actor.said = ActorLost("killed by somebody")
    mesh.engine.step()
    assert (mesh.state("node11").stand, mesh.state("node11").url) == (Stand.WAITING, "")
    assert "killed by somebody" in mesh.state("node11").reason
    mesh.engine.step()
    assert mesh.cluster.actors["node11"] is actor
    clock.advance(AGAIN_SECONDS)
    mesh.engine.step()
    assert mesh.cluster.actors["node11"] is not actor
    assert mesh.state("node11").stand is Stand.STARTING


def test_a_group_that_somebody_removed_is_asked_for_again(mesh: Mesh) -> None:
    mesh.add(1, "a", "b")
    mesh.cluster.groups[0].places = None
    mesh.engine.step()
    assert len(mesh.cluster.groups) == 2
    assert {state.stand for state in mesh.engine.states()} == {Stand.PLACING}
    mesh.cluster.groups[1].places = {0: "b", 1: "c"}
    mesh.engine.step()
    assert {state.machine for state in mesh.engine.states()} == {"machine b", "machine c"}


def test_a_retired_replica_drains_and_goes_with_its_group(mesh: Mesh) -> None:
    mesh.add(1, "a", "b")
    mesh.add(2, "b", "a")
    mesh.engine.retire(["node21", "node22"])
    actors = [mesh.cluster.actors[name] for name in ("node21", "node22")]
    assert [[word[0] for word in actor.heard] for actor in actors] == [["retire"], ["retire"]]
    for actor in actors:
        actor.said = {"stand": "leaving"}
    mesh.engine.step()
    assert {mesh.state(name).stand for name in ("node21", "node22")} == {Stand.LEAVING}
    actors[0].said = {"stand": "left"}
    mesh.engine.step()
    assert [state.name for state in mesh.engine.states()] == ["node11", "node12", "node22"]
    assert not mesh.cluster.groups[1].is_released
    actors[1].said = {"stand": "left"}
    mesh.engine.step()
    assert [state.name for state in mesh.engine.states()] == ["node11", "node12"]
    assert [group.is_released for group in mesh.cluster.groups] == [False, True]
    assert all(actor.is_ended for actor in actors)


def test_a_retired_node_that_ray_started_again_is_told_once_more(mesh: Mesh) -> None:
    mesh.add(1, "a", "b")
    mesh.engine.retire(["node11"])
    mesh.engine.step()  # it says that it is ready
    assert [word[0] for word in mesh.cluster.actors["node11"].heard] == ["retire", "retire"]


@pytest.mark.parametrize("end", [ActorAway(), ActorLost("gone"), {"stand": "refused"}])
def test_a_retired_node_that_ends_otherwise_has_left_too(mesh: Mesh, end: Any) -> None:
    mesh.add(1, "a", "b")
    mesh.engine.retire(["node11"])
    mesh.cluster.actors["node11"].said = end
    mesh.engine.step()
    assert [state.name for state in mesh.engine.states()] == ["node12"]
    assert mesh.cluster.actors["node11"].is_ended


def test_a_retired_node_whose_machine_dies_has_left_and_is_at_no_moment_placed_anew(mesh: Mesh) -> None:
    mesh.add(1, "a", "b")
    mesh.engine.retire(["node11"])
    actor = mesh.cluster.actors["node11"]
    actor.said = {}
    mesh.cluster.alive = [machine for machine in mesh.cluster.alive if machine.id != "a"]
    mesh.engine.step()
    assert [state.name for state in mesh.engine.states()] == ["node12"]
    assert actor.is_ended
    assert mesh.lines == []


def test_what_has_no_place_yet_is_retired_at_once(mesh: Mesh) -> None:
    mesh.engine.add([spec("node11", 1, 1)])
    mesh.engine.retire(["node11"])
    mesh.engine.step()
    assert mesh.engine.states() == []
    assert mesh.cluster.groups[0].is_released


def test_stop_ends_all_in_order_and_leaves_the_cluster(mesh: Mesh) -> None:
    mesh.add(1, "a", "b")
    for actor in mesh.cluster.actors.values():
        actor.said = {"stand": "left"}
    mesh.engine.stop(lambda seconds: pytest.fail("nothing is left to wait for"))
    assert [[word[0] for word in actor.heard] for actor in mesh.cluster.actors.values()] == [["stop"], ["stop"]]
    assert all(actor.is_ended for actor in mesh.cluster.actors.values())
    assert mesh.cluster.groups[0].is_released
    assert mesh.cluster.is_closed
    assert mesh.engine.states() == []


@pytest.mark.parametrize(("hurried", "seconds"), [(True, 0.1), (False, STOP_SECONDS)])
def test_what_does_not_end_in_time_is_killed(mesh: Mesh, clock: Clock, hurried: bool, seconds: float) -> None:
    mesh.add(1, "a", "b")
    mesh.cluster.actors["node12"].said = {"stand": "left"}
    began = clock.now

    def wait(pause: float) -> bool:
        clock.advance(pause)
        return hurried

    mesh.engine.stop(wait)
    assert clock.now - began == pytest.approx(seconds, abs=0.05)
    assert [word[0] for word in mesh.cluster.actors["node11"].heard] == ["stop", "kill"]
    assert [word[0] for word in mesh.cluster.actors["node12"].heard] == ["stop"]
    assert "Killing node11." in mesh.lines


def test_machines_are_those_that_can_hold_a_node(mesh: Mesh) -> None:
    mesh.cluster.surveyed = {
        "a": {"problem": "", "bytes_per_second": 1e10, "cores": 4, "gpu_bytes": 0},
        "b": {"problem": "the project is not at /project there"},
    }
    assert mesh.engine.machines() == [Machine("machine a", 8 * GIB, 1e10, 4, 0)]
    assert mesh.lines == ["No node can be on machine b: the project is not at /project there."]


def test_without_any_such_machine_it_refuses(mesh: Mesh) -> None:
    mesh.cluster.surveyed = {"a": {"problem": "the project is not at /project there"}}
    with pytest.raises(EngineRefused, match="machine a: the project is not at /project there"):
        mesh.engine.machines()


def test_nodes_with_certificates_are_refused(mesh: Mesh) -> None:
    with pytest.raises(EngineRefused, match="plain HTTP"):
        mesh.engine.add([spec("node11", 1, 1, MESHNET_TLS_CERT="/cert")])


def test_the_nodes_of_a_cluster_of_one_machine_stay_on_loopback(clock: Clock) -> None:
    cluster: Any = FakeCluster("a")
    cluster.alive = [RayMachine("a", "a", "10.0.0.1", Room(8, 0, 8 * GIB))]
    cluster.address_here = "10.0.0.1"
    engine = RayEngine(cluster, Path("/project"), Path("/var"), lambda line: None, clock=clock)
    assert engine.addresses == ["127.0.0.1"]
    engine.add([spec("node11", 1, 1)])
    cluster.groups[0].places = {0: "a"}
    engine.step()
    assert cluster.actors["node11"].order.only_at == "10.0.0.1"
