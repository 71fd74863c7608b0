"""A node is told to end, or to load anew, in the middle of an answer (case F08)."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from tests import processes
from tests.chaos.chat import ask
from tests.chaos.gate import Forward, Gate, Meddle
from tests.chaos.marks import further
from tests.chaos.matrix import PROMPT, TOKENS, Matrix, check_repaired, check_whole
from tests.chaos.mesh import ChaosMesh, Fault, Replica
from tests.processes import wait_until


def told(sig: signal.Signals) -> Fault:
    def tell(replica: Replica, forward: Forward) -> bytes | None:
        os.kill(replica.served.process.pid, sig)
        return forward()

    return tell


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGHUP], ids=["SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("stage", [0, further(2)])
def test_f08_a_short_answer_ends_as_if_nothing_had_happened(
    mesh: ChaosMesh, matrix: Matrix, sig: signal.Signals, stage: int
) -> None:
    boot_ids = mesh.boot_ids()
    mesh.stages[stage].arm(8, told(sig))
    check_whole(ask(mesh, PROMPT, TOKENS), matrix.greedy, TOKENS)
    assert mesh.last_row()["status"] == "done"
    victim = mesh.stages[stage].victim
    assert victim is not None
    check_whole(ask(mesh, PROMPT, TOKENS, seed=matrix.seed), matrix.sampled, TOKENS)
    if sig == signal.SIGTERM:
        victim.served.process.join(15)
        assert victim.served.process.exitcode == 0
    else:
        wait_until(lambda: mesh.boot_ids().get(victim.url, boot_ids[victim.url]) != boot_ids[victim.url], 20)
        check_whole(ask(mesh, PROMPT, TOKENS), matrix.greedy, TOKENS)
    wait_until(mesh.is_idle, 10)


def test_f08_a_long_answer_moves_off_a_node_that_leaves(mesh: ChaosMesh, matrix: Matrix) -> None:
    """Slowed so much that the node's patience with running answers ends before the answer does."""
    never = threading.Event()
    stage = mesh.stages[1]
    watches = {replica.url: replica.gate.watch for replica in stage.replicas}

    def slowly(gate: Gate, request: str) -> Meddle | None:
        if stage.victim is None or gate is stage.victim.gate:
            never.wait(0.35)
        return watches[gate.url](gate, request)

    stage.arm(4, told(signal.SIGTERM))
    try:
        for replica in stage.replicas:
            replica.gate.watch = slowly
        check_whole(ask(mesh, PROMPT, TOKENS), matrix.greedy, TOKENS)
    finally:
        for replica in stage.replicas:
            replica.gate.watch = watches[replica.url]
    row = mesh.last_row()
    check_repaired(stage, row)
    assert (row["failovers"], row["prefills"]) == (1, 2)
    assert stage.victim is not None
    stage.victim.served.process.join(15)
    assert stage.victim.served.process.exitcode == 0
    assert processes.call(f"{mesh.head.url}/readyz")[0] == 200
    wait_until(mesh.is_idle, 5)
