from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from meshsite.engine import Stand
from meshsite.launcher import HEADS_FIRST_SECONDS, Launcher
from meshsite.mesh_record import MeshRecord
from meshsite.replicas import Replicas
from meshsite.scaler import Scaler
from meshsite.supervisor import ChildSpec, StartFailed, Supervisor
from nodes.mesh_file import MeshFile
from tests.conftest import Clock
from tests.unit.meshsite.fake_engine import FakeEngine, Names
from tests.unit.meshsite.test_supervisor import FakeProcess

MESH = MeshFile("http://head", (), "key", "secret", "mesh-admin", "password", ("http://head",))


class StubbornProcess(FakeProcess):
    def send_signal(self, sig: int) -> None:
        self.received.append(sig)


class Stage:
    """A head and a replica of two nodes; `happens` is what comes to pass at each wait."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.folder, self.clock = folder, clock
        self.said: list[str] = []
        self.head_answers = False
        self.process: FakeProcess = FakeProcess()
        self.engine = FakeEngine()
        self.heads = Supervisor(
            [ChildSpec("head", ["x"], {}, "http://head", folder)], folder / "logs", self.said.append,
            clock=clock, probe=lambda url: self.head_answers, launch=self._launch,
        )  # fmt: skip
        replicas = Replicas(self.engine, Names().make, self.said.append, wanted=1, most=4)
        self.record = MeshRecord(MESH, folder, lambda urls: True, clock=clock)
        self.launcher = Launcher(
            self.heads, self.engine, Scaler(replicas, self.said.append), self.record, self.said.append, clock=clock
        )

    def _launch(self, spec: ChildSpec, output: IO[bytes]) -> Any:
        return self.process

    def later(self, seconds: float) -> bool:
        self.clock.advance(seconds)
        return False


@pytest.fixture
def stage(tmp_path: Path, clock: Clock) -> Iterator[Stage]:
    stage = Stage(tmp_path, clock)
    with stage.heads:
        yield stage


def test_it_is_ready_once_heads_and_nodes_serve_and_then_it_is_written_down(stage: Stage) -> None:
    def wait(seconds: float) -> bool:
        assert MeshFile.read(stage.folder) is None
        if stage.engine.states()[0].stand is Stand.READY:
            stage.head_answers = True
        stage.engine.all_serve()
        return False

    assert stage.launcher.start(wait)
    mesh = MeshFile.read(stage.folder)
    assert mesh is not None
    assert mesh.nodes == ("http://node1", "http://node2")


def test_while_it_waits_it_says_for_whom(stage: Stage) -> None:
    def wait(seconds: float) -> bool:
        stage.clock.advance(4)
        return stage.clock.now > 1020

    assert not stage.launcher.start(wait)
    assert stage.said[0] == "Waiting for node1, node2, head (12 s) …"


def test_of_a_node_without_a_place_it_says_why(stage: Stage) -> None:
    def wait(seconds: float) -> bool:
        stage.engine.become("node2", Stand.PLACING, "no machine has 3 GiB of memory for it")
        stage.clock.advance(10)
        return stage.clock.now > 1010

    assert not stage.launcher.start(wait)
    assert stage.said[0] == "Waiting for node1, node2 (no machine has 3 GiB of memory for it), head (10 s) …"


def test_a_node_that_refuses_ends_the_start_with_its_reason(stage: Stage) -> None:
    def wait(seconds: float) -> bool:
        stage.engine.become("node2", Stand.REFUSED, "the shoe does not fit")
        return False

    with pytest.raises(StartFailed, match=r"^node2 cannot serve: the shoe does not fit$"):
        stage.launcher.start(wait)


def test_at_the_end_nodes_stay_until_the_heads_have_left(stage: Stage) -> None:
    stage.process = StubbornProcess()
    stage.launcher.start(lambda seconds: True)
    seen = []

    def wait(seconds: float) -> bool:
        seen.append(stage.engine.stopped)
        if len(seen) == 3:
            stage.process.returncode = 0
        return False

    stage.launcher.stop(wait)
    assert seen == [False, False, False]
    assert stage.engine.stopped
    assert not any("Killing" in line for line in stage.said)


def test_heads_that_do_not_leave_hold_the_nodes_for_five_seconds_and_are_killed(stage: Stage) -> None:
    stage.process = StubbornProcess()
    stage.launcher.start(lambda seconds: True)
    began = stage.clock.now
    stage.launcher.stop(stage.later)
    assert stage.engine.stopped
    assert stage.clock.now - began == pytest.approx(HEADS_FIRST_SECONDS, abs=0.2)
    assert stage.said[-1] == "Killing head."


def test_a_second_request_ends_everything_at_once(stage: Stage) -> None:
    stage.process = StubbornProcess()
    stage.launcher.start(lambda seconds: True)
    waits = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        stage.clock.advance(1.1)
        return True

    stage.launcher.stop(wait)
    assert len(waits) == 1
    assert stage.engine.stopped
    assert stage.said[-1] == "Killing head."
