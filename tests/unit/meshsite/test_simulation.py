"""A small mesh in virtual time: what must hold of thousands of answers holds of hundreds, well and while nodes fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from meshsite.simulation.cost import Cost
from meshsite.simulation.faults import pause_around
from meshsite.simulation.load import Load, LoadRun
from meshsite.simulation.mesh import MeshSize
from meshsite.simulation.planning import planning
from meshsite.simulation.registry import announcing
from meshsite.simulation.report import tables

SIZE = MeshSize(nodes=40, head_workers=2, cost=Cost(stretches=2))
#: What `busy_wait` of the loop allows, one last try and its prefill.
LONGEST_WAIT = 34.0


@pytest.fixture(scope="module")
def crowded() -> LoadRun:
    """More sessions than slots, all well."""
    run = LoadRun(Load(1.3, 150), SIZE, seed=3)
    run.run()
    return run


@pytest.fixture(scope="module")
def broken() -> LoadRun:
    """Nodes crash, hang, go silent together and are drained meanwhile."""
    run = LoadRun(Load(0.7, 120, with_faults=True), SIZE, seed=4)
    run.run()
    return run


def test_every_text_comes_whole_and_no_token_twice(crowded: LoadRun) -> None:
    assert crowded.numbers["served"] + crowded.numbers["refused"] == 150
    assert (crowded.numbers["lost"], crowded.numbers["wrong"]) == (0, 0)
    assert crowded.numbers["reprefills"] == 0, "nobody takes the slots of an answer that runs"


def test_waits_are_bounded_and_real(crowded: LoadRun) -> None:
    assert 0 < crowded.numbers["queued_max"] < LONGEST_WAIT
    assert crowded.numbers["busy_answers"] > 0
    assert crowded.numbers["slots_taken_mean"] <= crowded.numbers["slots"], "no more than there are"


def test_who_came_first_to_a_worker_is_served_first(crowded: LoadRun) -> None:
    assert sum(session.waited for session in crowded.traffic.sessions) > 10, "there was a line"
    assert crowded.numbers["overtaken"] == 0


def test_all_slots_are_given_back(crowded: LoadRun, broken: LoadRun) -> None:
    for run in (crowded, broken):
        for node in run.mesh.nodes:
            node.store.check_integrity()
        assert [len(head.line) for head in run.mesh.heads] == [0, 0]
        assert [head.running() for head in run.mesh.heads] == [[], []]
    assert crowded.numbers["slots_left"] == 0


def test_no_answer_is_lost_while_a_replica_lives(broken: LoadRun) -> None:
    assert (broken.numbers["lost"], broken.numbers["wrong"]) == (0, 0)
    assert broken.numbers["failovers"] > 0
    assert {row["fault"] for row in broken.numbers["recoveries"]} == {"crash", "hang", "rack", "drain"}
    assert sum(row["answers_hit"] for row in broken.numbers["recoveries"]) > 5


def test_an_answer_that_is_hit_goes_on_soon(broken: LoadRun) -> None:
    assert max(row["pause_max"] for row in broken.numbers["recoveries"]) < LONGEST_WAIT


def test_a_seed_repeats() -> None:
    def numbers(seed: int) -> dict[str, Any]:
        run = LoadRun(Load(0.9, 20, with_faults=True), MeshSize(nodes=10, head_workers=2, cost=Cost(stretches=2)), seed)
        return {name: value for name, value in run.run().items() if name != "real_seconds"}

    assert numbers(7) == numbers(7)
    assert numbers(7) != numbers(8)


@pytest.mark.django_db
def test_nodes_that_start_together_are_soon_known_to_their_head() -> None:
    found = announcing(60, 1, 2)
    assert found["storm"]["verified"] == 60
    assert found["storm"]["refused_as_busy"] > 0, "eight are verified at once"
    assert found["storm"]["seconds"] < 10, "with the same pauses for all it takes 25"
    assert found["statements_per_beat"] == 2.0
    assert (found["after_restart"]["known_again"], found["after_restart"]["verified"]) == (60, 0)


@pytest.mark.django_db
def test_heads_of_one_database_each_come_to_know_all_nodes(settings: Any) -> None:
    settings.MESHNET_ANNOUNCE_SECONDS = 60.0
    found = announcing(10, 2, 1)
    assert found["storm"]["verified"] <= 2 * 10
    assert (found["after_restart"]["known_again"], found["after_restart"]["verified"]) == (20, 0)


def test_a_plan_is_measured_for_each_number_of_nodes() -> None:
    rows = planning((5, 10), 3, seed=1)
    assert [row["nodes"] for row in rows] == [5, 10]
    assert all(row["plan_ms"] > 0 and row["directory_bytes_per_node"] > 1000 for row in rows)


@pytest.mark.parametrize(("at", "pause"), [(0.5, 1.0), (1.5, 6.0), (9.0, None)])
def test_the_pause_around_a_fault_is_the_longer_of_the_next_two(at: float, pause: float | None) -> None:
    assert pause_around(at, [1.0, 2.0, 8.0]) == pause


def test_tables_have_a_column_for_each_run(crowded: LoadRun) -> None:
    found = {"load": [crowded.numbers, crowded.numbers], "seed": 3, "seconds": 1.0, "torch_loaded": False}
    lines = tables(found)
    assert next(line for line in lines if line.split()[0:1] == ["sessions"]).split() == ["sessions", "150", "150"]
    assert lines[-1] == "Seed 3, 1.0 s; torch was not loaded."


def test_no_torch_is_loaded() -> None:
    code = (
        "import os, sys, django; os.environ.setdefault('DJANGO_SETTINGS_MODULE', 'meshsite.settings'); django.setup();"
        "import meshsite.simulation.run, meshsite.simulation.registry; print('torch' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3]
    )
    assert result.stdout.strip() == "False"
