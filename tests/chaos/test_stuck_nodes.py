"""Nodes that are there and of no use (case D06): left within the timeouts, shown by the head, and passed by."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from tests import processes
from tests.chaos import faults
from tests.chaos.chat import ask
from tests.chaos.gate import Forward, Gate, Meddle
from tests.chaos.marks import further
from tests.chaos.matrix import PROMPT, TOKENS, Matrix, check_repaired, check_whole
from tests.chaos.mesh import STEP, ChaosMesh, Replica
from tests.processes import wait_until


class Uselessness:
    """Ways for a replica to be of no use from now on, and the way back."""

    def __init__(self) -> None:
        self._is_over = threading.Event()
        self._undo: list[Callable[[], None]] = []

    def silent(self, replica: Replica) -> None:
        """It takes connections and requests, and never answers."""

        def never(forward: Forward) -> None:
            self._is_over.wait(60)

        self._watch(replica, lambda gate, request: never)

    def half(self, replica: Replica) -> None:
        """Steps are answered by half, and then there is silence. Everything else is as it should be."""
        replica.gate.keeps_half_open = True
        self._undo.append(lambda: setattr(replica.gate, "keeps_half_open", False))

        def halve(forward: Forward) -> bytes | None:
            return faults.half_after(replica, forward)

        self._watch(replica, lambda gate, request: halve if request == STEP else None)

    def closed(self, replica: Replica) -> None:
        """Nothing listens on its port any more."""
        replica.gate.shut()
        replica.served.kill()
        self._undo.append(replica.gate.open)

    def stopped(self, replica: Replica) -> None:
        replica.suspend()

    def _watch(self, replica: Replica, watch: Callable[[Gate, str], Meddle | None]) -> None:
        former = replica.gate.watch
        replica.gate.watch = watch
        self._undo.append(lambda: setattr(replica.gate, "watch", former))

    def end(self) -> None:
        self._is_over.set()
        while self._undo:
            self._undo.pop()()


@pytest.fixture
def uselessness(mesh: ChaosMesh) -> Iterator[Uselessness]:
    made = Uselessness()
    yield made
    made.end()


@pytest.mark.parametrize("kind", ["silent", "half", "closed"])
def test_d06_a_node_of_no_use_is_left_and_then_passed_by(
    mesh: ChaosMesh, matrix: Matrix, uselessness: Uselessness, kind: str
) -> None:
    stage = mesh.stages[1]

    def befall(replica: Replica, forward: Forward) -> bytes | None:
        getattr(uselessness, kind)(replica)
        meddle = replica.gate.watch(replica.gate, STEP)
        return meddle(forward) if meddle else forward()

    stage.arm(12, befall)
    check_whole(ask(mesh, PROMPT, TOKENS), matrix.greedy, TOKENS)
    check_repaired(stage, mesh.last_row())
    assert stage.victim is not None
    check_whole(ask(mesh, PROMPT, TOKENS), matrix.greedy, TOKENS)
    row = mesh.last_row()
    assert row["failovers"] == 0
    assert stage.victim.url not in [hop["node"] for hop in row["route"]]
    assert processes.call(f"{mesh.head.url}/readyz")[0] == 200


@pytest.mark.parametrize("kind", ["closed", further("stopped")])
def test_d06_where_no_route_is_left_the_head_says_so_and_fails_fast(
    mesh: ChaosMesh, matrix: Matrix, uselessness: Uselessness, kind: str
) -> None:
    for replica in mesh.stages[1].replicas:
        getattr(uselessness, kind)(replica)
    answer = ask(mesh, PROMPT, TOKENS, timeout=20)
    assert (answer.status, answer.code) == (503, "no_route"), answer
    assert "retry-after" in answer.headers
    wait_until(lambda: processes.call(f"{mesh.head.url}/readyz")[0] == 503, 10, "the head takes itself for ready")
    uselessness.end()
    mesh.heal()
    wait_until(lambda: processes.call(f"{mesh.head.url}/readyz")[0] == 200, 10, "all is well again")
    check_whole(ask(mesh, PROMPT, TOKENS), matrix.greedy, TOKENS)
