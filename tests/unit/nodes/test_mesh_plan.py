from __future__ import annotations

import json
from typing import Any

import pytest

from nodes.errors import SplitRefused
from nodes.layers import LayerRange
from nodes.machines import Machine
from nodes.mesh_plan import MachineText, MeshPlan, plan_mesh, teams
from tests.unit.nodes.fake_costs import FakeCosts, even


def plan(machines: list[Machine], costs: FakeCosts | None = None, **changed: Any) -> MeshPlan:
    options = {
        "shards": 2,
        "layers": None,
        "replicas": 1,
        "reserve_bytes": 5,
        "max_sessions": 8,
        "layer_ms": 0.0,
    } | changed
    return plan_mesh(costs or even(6), machines, max_cache_bytes=20, hop_ms=2.0, **options)


def machine(name: str, memory: int = 100, speed: float = 1000.0, **more: float) -> Machine:
    return Machine(name, memory, speed, **more)


def test_a_token_passes_every_stage_and_a_hop_to_each() -> None:
    found = plan([machine("a"), machine("b", speed=500.0)])
    assert [(str(stage.layers), stage.machines, stage.compute_ms) for stage in found.stages] == [
        ("0:4", ("a",), 40.0),
        ("4:6", ("b",), 40.0),
    ]
    assert (found.compute_ms, found.token_ms, found.slowest_ms) == (80.0, 84.0, 40.0)
    with_python = plan([machine("a"), machine("b", speed=500.0)], layer_ms=1.0)
    assert [stage.compute_ms for stage in with_python.stages] == [44.0, 42.0]


def test_a_session_alone_finds_the_whole_machine_and_many_share_it() -> None:
    found = plan([machine("a")])
    assert [(stage.alone_ms, stage.compute_ms) for stage in found.stages] == [(30.0, 60.0), (30.0, 60.0)]
    assert (found.token_ms, found.slowest_ms) == (64.0, 60.0)


def test_each_stage_says_what_a_node_of_it_needs() -> None:
    first, second = plan([machine("a", cpus=4, gpus=1), machine("b", cpus=4, gpus=1)]).stages
    # 30 of weights, 8 sessions of 3 that must stay below 20, 5 of reserve.
    assert (first.weight_bytes, first.cache_bytes, first.memory_bytes, first.sessions_fit) == (30, 20, 55, 65 // 3)
    assert (first.cpus, first.gpus) == (second.cpus, second.gpus) == (4, 1)


def test_its_json_can_be_written_and_names_layers_as_settings_do() -> None:
    data = json.loads(json.dumps(plan([machine("a"), machine("b")]).as_json()))
    assert [stage["layers"] for stage in data["stages"]] == ["0:3", "3:6"]
    assert data["stages"][0]["machines"] == ["a"]
    assert data["token_ms"] == 64.0


def test_replicas_of_a_stage_stand_on_machines_of_like_speed() -> None:
    machines = [machine("a"), machine("b", speed=2000.0), machine("c"), machine("d", speed=2000.0)]
    found = plan(machines, replicas=2)
    assert {stage.machines: stage.layers.size for stage in found.stages} == {("b", "d"): 4, ("a", "c"): 2}


def test_a_team_is_as_good_as_its_worst_machine() -> None:
    (team,) = teams([machine("a", 50, 3.0, cpus=1, gpus=2), machine("b", 90, 2.0, cpus=4)], 2)
    assert (team.memory_bytes, team.bytes_per_second, team.cpus, team.gpus) == (50, 2.0, 1, 0)


def test_fewer_machines_than_replicas_are_shared() -> None:
    found = plan([machine("a", memory=400, speed=600.0, cpus=6)], replicas=3)
    for stage in found.stages:
        assert stage.machines == ("a", "a", "a")
        assert (stage.cpus, stage.compute_ms) == (1.0, 300.0)  # a sixth of the machine


def test_a_machine_that_makes_no_team_stays_spare() -> None:
    assert [team.name.split() for team in teams([machine(name) for name in "abc"], 2)] == [["a", "b"]]


def test_there_is_no_plan_without_machines() -> None:
    with pytest.raises(SplitRefused, match="no machine"):
        plan([], replicas=2)


@pytest.mark.parametrize("replicas", [0, 1001, 999_999_999])
def test_more_replicas_than_anybody_has_are_refused_before_any_is_planned(replicas: int) -> None:
    with pytest.raises(SplitRefused, match=f"1 to 1000 nodes, not {replicas}"):
        plan([machine("a", memory=10**18)], replicas=replicas)


def test_replicas_that_do_not_fit_are_refused_with_what_is_missing() -> None:
    # 2 * (66 + 2 * 5) = 152
    with pytest.raises(SplitRefused, match=r"2 replicas of 2 stages take 152 B.* 150 B: 2 B are missing\. Name fewer"):
        plan([machine("a", memory=75), machine("b", memory=75)], replicas=2)


def test_a_cut_by_hand_is_kept() -> None:
    named = [LayerRange(0, 1), LayerRange(1, 6)]
    assert [stage.layers for stage in plan([machine("a"), machine("b")], layers=named).stages] == named


@pytest.mark.parametrize(
    ("text", "machine"),
    [
        ("a=8GiB", MachineText("a", 8 * 2**30)),
        ("gpu-1.example=80GB@2TB,cpus=16,gpus=1", MachineText("gpu-1.example", 80 * 10**9, 2e12, 16.0, 1.0)),
        ("10.0.0.1=1GiB@12.5GB/s, gpus=0.5", MachineText("10.0.0.1", 2**30, 12.5e9, 1.0, 0.5)),
    ],
)
def test_machines_are_read(text: str, machine: MachineText) -> None:
    assert MachineText.parse(text) == machine


@pytest.mark.parametrize(
    "text",
    ["", "a", "a=", "=8GiB", "a=8G", "a=0", "a=8GiB@", "a=8GiB@fast", "a=8GiB,ram=2", "a=8GiB,cpus=", "a=8GiB,gpus=-1"],
)
def test_what_is_no_machine_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not|no memory"):
        MachineText.parse(text)


@pytest.mark.parametrize("text", ["a=4GiB@0", "a=4GiB@1e-05", "a=4GiB@fast"])
def test_a_wrong_speed_is_called_a_speed(text: str) -> None:
    with pytest.raises(ValueError, match="is not a speed: write the bytes of weights read per second"):
        MachineText.parse(text)


def test_a_named_speed_stands_and_others_get_the_measured_one() -> None:
    assert MachineText("a", 1, 7.0).with_speed(9.0).bytes_per_second == 7.0
    assert MachineText("a", 1).with_speed(9.0).bytes_per_second == 9.0
