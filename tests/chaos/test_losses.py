"""Losses that one replica more does not make good: several nodes at once, whole stages, strangers in a node's place."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import processes, toys
from tests.chaos import faults
from tests.chaos.chat import ask
from tests.chaos.gate import Forward
from tests.chaos.marks import further
from tests.chaos.matrix import PROMPT, TOKENS, Matrix, check_repaired, check_whole
from tests.chaos.mesh import ChaosMesh, Replica, Stage
from tests.processes import Served, wait_until
from tests.toy_mesh import get_json

#: Moments of a stage's `/forward`: the prefill, one in the middle, the last.
MOMENTS = [1, 12, further(TOKENS)]


def kill_all(stage: Stage) -> Callable[[Replica, Forward], bytes | None]:
    def kill(replica: Replica, forward: Forward) -> bytes | None:
        for one in stage.replicas:
            one.served.kill()
        return forward()

    return kill


@pytest.mark.parametrize("step", MOMENTS)
def test_two_nodes_of_the_route_die_at_once(mesh: ChaosMesh, matrix: Matrix, step: int) -> None:
    first, _, last = mesh.stages

    def both(replica: Replica, forward: Forward) -> bytes | None:
        (other,) = (one for one in last.replicas if step > 1 and one.sessions()) if step > 1 else last.replicas[:1]
        other.served.kill()
        replica.served.kill()
        return forward()

    first.arm(step, both)
    check_whole(ask(mesh, PROMPT, TOKENS), matrix.greedy, TOKENS)
    check_repaired(first, mesh.last_row())
    wait_until(mesh.is_idle, 5)


def failovers(row: dict[str, Any]) -> list[tuple[str, str]]:
    """The error's code and the node of each, by the generation's time line."""
    events = [event["detail"] for event in row["timeline"] if event["event"] == "failover"]
    return [(detail.split(" on ")[0], detail.rpartition(" ")[2]) for detail in events]


@pytest.mark.parametrize("second", [0, 1, further(2)])
def test_another_node_dies_while_the_text_is_prefilled_again(mesh: ChaosMesh, matrix: Matrix, second: int) -> None:
    """The replacement itself, one before it, or one behind it."""
    hit: list[str] = []

    def first_fault(replica: Replica, forward: Forward) -> None:
        hit.append(replica.url)
        mesh.stages[second].arm(1, second_fault)

    def second_fault(replica: Replica, forward: Forward) -> bytes | None:
        hit.append(replica.url)
        replica.served.kill()
        return forward()

    mesh.stages[1].arm(12, first_fault)
    check_whole(ask(mesh, PROMPT, TOKENS, seed=matrix.seed), matrix.sampled, TOKENS)
    row = mesh.last_row()
    check_repaired(mesh.stages[1], row)
    assert len(hit) == 2
    left = failovers(row)
    # Others are of plans on old news: the test before may have left a node that is only now known to be back.
    assert [node for _, node in left if node in hit] == hit, left
    assert row["prefills"] == len(left) + 1
    wait_until(mesh.is_idle, 5)


@pytest.mark.parametrize("stream", [True, further(False)])
def test_a_stage_that_is_lost_whole_is_waited_for(mesh: ChaosMesh, matrix: Matrix, stream: bool) -> None:
    stage = mesh.stages[1]
    back: list[threading.Thread] = []

    def lose(replica: Replica, forward: Forward) -> bytes | None:
        try:
            return kill_all(stage)(replica, forward)
        finally:
            back.append(threading.Thread(target=come_back))
            back[0].start()

    def come_back() -> None:
        # The head gives back what it holds elsewhere when it begins to wait.
        wait_until(lambda: not any(mesh.stages[0].replicas[n].sessions() for n in range(2)), 10)
        stage.swap(stage.replicas[0])

    stage.arm(12, lose)
    answer = ask(mesh, PROMPT, TOKENS, stream=stream)
    back[0].join()
    check_whole(answer, matrix.greedy, TOKENS)
    row = mesh.last_row()
    check_repaired(stage, row)
    assert "waiting" in [event["event"] for event in row["timeline"]]
    wait_until(mesh.is_idle, 5)


def test_a_stage_that_stays_lost_ends_a_stream_with_one_error_and_no_end(mesh: ChaosMesh, matrix: Matrix) -> None:
    stage = mesh.stages[2]
    stage.arm(12, kill_all(stage))
    answer = ask(mesh, PROMPT, TOKENS)
    assert (answer.status, answer.code, answer.is_whole) == (200, "no_route", False)
    assert answer.text == matrix.greedy[:11], "what came before the loss, once"
    row = mesh.last_row()
    assert (row["status"], row["completion_tokens"]) == ("failed", 11)
    wait_until(mesh.is_idle, 5, "the nodes that live still hold the session")


def test_a_stage_that_stays_lost_ends_a_whole_answer_as_503_that_is_not_to_be_repeated(mesh: ChaosMesh) -> None:
    stage = mesh.stages[0]
    stage.arm(TOKENS, kill_all(stage))
    answer = ask(mesh, PROMPT, TOKENS, stream=False)
    assert (answer.status, answer.code) == (503, "no_route")
    assert answer.headers["x-should-retry"] == "false"
    assert "retry-after" not in answer.headers
    assert mesh.last_row()["status"] == "failed"
    wait_until(mesh.is_idle, 5, "the nodes that live still hold the session")


@pytest.mark.parametrize("stream", [True, False])
def test_before_anything_was_done_a_lost_stage_is_503_to_be_tried_again(mesh: ChaosMesh, stream: bool) -> None:
    stage = mesh.stages[1]
    stage.arm(1, kill_all(stage))
    for _ in range(2):  # the fault, and then a head that knows
        answer = ask(mesh, PROMPT, TOKENS, stream=stream)
        assert (answer.status, answer.code) == (503, "no_route")
        assert int(answer.headers["retry-after"]) > 0
        assert "x-should-retry" not in answer.headers
    status, _, _ = processes.call(f"{mesh.head.url}/readyz")
    assert status == 503, "the head says that it cannot answer"
    wait_until(mesh.is_idle, 5)


@pytest.fixture
def stranger(chaos_model: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Served]:
    """A node of other layers, or of another model of the very same shape."""
    if request.param == "layers":
        node = processes.node(tmp_path, chaos_model, "0:1")
    else:
        node = processes.node(tmp_path, toys.build_model("llama", tmp_path / "model", seed=1), "1:3")
    with processes.serving(node):
        yield node


@pytest.mark.parametrize("stranger", ["layers", "model"], indirect=True)
def test_d07_a_stranger_in_a_nodes_place_is_never_used(mesh: ChaosMesh, matrix: Matrix, stranger: Served) -> None:
    stage = mesh.stages[1]
    places: list[tuple[Replica, Served]] = []

    def swap(replica: Replica, forward: Forward) -> bytes | None:
        places.append((replica, replica.replace(stranger)))
        places[0][1].kill()
        return forward()

    stage.arm(12, swap)
    try:
        check_whole(ask(mesh, PROMPT, TOKENS), matrix.greedy, TOKENS)
        check_repaired(stage, mesh.last_row())
        assert get_json(f"{stranger.url}/sessions")["stats"]["prefills"] == 0
        wait_until(mesh.is_idle, 5)
    finally:
        for replica, former in places:
            replica.replace(former)


def test_each_replica_of_a_stage_fails_in_turn_and_the_first_is_taken_again(mesh: ChaosMesh, matrix: Matrix) -> None:
    stage = mesh.stages[1]
    left: list[str] = []

    def fault(replica: Replica, forward: Forward) -> bytes:
        left.append(replica.url)
        if len(left) < 3:
            stage.arm(1, fault)
        return faults.error_before(replica, forward)

    stage.arm(12, fault)
    check_whole(ask(mesh, PROMPT, TOKENS), matrix.greedy, TOKENS)
    assert set(left) == {replica.url for replica in stage.replicas}
    # Others are of a plan on old news: the test before may have had a stranger in a node's place.
    assert [node for code, node in failovers(mesh.last_row()) if code == "compute_failed"] == left
