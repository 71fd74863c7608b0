from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from meshsite.engine import NodeSpec, Stand
from meshsite.local_engine import LocalEngine, local_child
from meshsite.supervisor import ChildSpec, Supervisor
from nodes.layers import LayerRange
from tests.conftest import Clock
from tests.unit.meshsite.children import free_ports, wait_for_end
from tests.unit.meshsite.test_supervisor import FakeProcess


class FakeLeaving:
    """A node that may end when a test says so."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.may_end = False
        self.asked = False
        self.ended = False

    def step(self) -> bool:
        self.asked = True
        return self.may_end

    def end(self) -> None:
        self.ended = True


class Stage:
    """An engine of children that do what the test says."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.clock = clock
        self.answering: set[str] = set()
        self.processes: dict[str, list[FakeProcess]] = {}
        self.leaving: dict[str, FakeLeaving] = {}
        self.first_port = free_ports(4)
        supervisor = Supervisor(
            [], folder / "logs", lambda line: None, clock=clock,
            probe=lambda url: url in self.answering, launch=self._launch,
        )  # fmt: skip
        self.engine = LocalEngine(
            folder / "logs",
            lambda line: None,
            make_child=lambda spec, port: ChildSpec(spec.name, ["x"], {}, f"http://127.0.0.1:{port}", folder),
            leave=self._leave,
            ports={"node1": self.first_port, "node2": self.first_port + 1},
            next_port=self.first_port + 2,
            supervisor=supervisor,
        )

    def _launch(self, spec: ChildSpec, output: IO[bytes]) -> Any:
        self.processes.setdefault(spec.name, []).append(FakeProcess())
        return self.processes[spec.name][-1]

    def _leave(self, url: str) -> Any:
        self.leaving[url] = FakeLeaving(url)
        return self.leaving[url]

    def serve(self, *names: str) -> None:
        self.answering |= {state.url for state in self.engine.states() if state.name in names}
        self.engine.step()

    def stands(self) -> dict[str, Stand]:
        return {state.name: state.stand for state in self.engine.states()}

    def url(self, name: str) -> str:
        return next(state.url for state in self.engine.states() if state.name == name)


@pytest.fixture
def stage(tmp_path: Path, clock: Clock) -> Iterator[Stage]:
    stage = Stage(tmp_path, clock)
    yield stage
    stage.engine.stop(lambda seconds: True)


def node(name: str, stage: int = 1, replica: int = 1) -> NodeSpec:
    return NodeSpec(name, replica, stage, LayerRange(stage - 1, stage), {"MESHNET_SECRET": "s"})


def test_nodes_of_the_start_have_the_ports_of_the_plan_and_later_ones_free_ones(stage: Stage) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", stage.first_port + 2))
        other.listen()
        stage.engine.add([node("node1"), node("node2", 2)])
        stage.engine.add([node("node3", replica=2)])
    offsets = [int(state.url.rpartition(":")[2]) - stage.first_port for state in stage.engine.states()]
    assert offsets == [0, 1, 3]


def test_two_nodes_that_do_not_listen_yet_have_different_ports(stage: Stage) -> None:
    stage.engine.add([node("node3"), node("node4", 2)])
    assert stage.url("node3") != stage.url("node4")


def test_a_node_starts_serves_fails_and_comes_back(stage: Stage) -> None:
    stage.engine.add([node("node1")])
    assert stage.stands() == {"node1": Stand.STARTING}
    stage.serve("node1")
    assert stage.stands() == {"node1": Stand.READY}
    stage.processes["node1"][-1].returncode = -9
    stage.engine.step()
    assert stage.stands() == {"node1": Stand.WAITING}
    stage.clock.advance(1)
    stage.engine.step()
    assert stage.stands() == {"node1": Stand.READY}
    assert len(stage.processes["node1"]) == 2


def test_a_node_that_refuses_is_not_started_again_and_says_why(stage: Stage) -> None:
    stage.engine.add([node("node1")])
    stage.engine.step()
    stage.processes["node1"][-1].returncode = 3
    stage.engine.step()
    (state,) = stage.engine.states()
    assert state.stand is Stand.REFUSED
    assert "it ended with code 3 (log: " in state.reason


def test_a_node_that_serves_drains_before_it_is_told_to_end(stage: Stage) -> None:
    stage.engine.add([node("node1")])
    stage.engine.step()
    stage.serve("node1")
    url = stage.url("node1")
    stage.engine.retire(["node1"])
    stage.engine.step()
    process = stage.processes["node1"][-1]
    assert stage.stands() == {"node1": Stand.LEAVING}
    assert process.received == []
    stage.leaving[url].may_end = True
    stage.engine.step()
    assert process.received == [signal.SIGTERM]
    stage.engine.step()
    stage.engine.step()
    assert stage.engine.states() == []


def test_a_node_that_dies_while_it_drains_has_left(stage: Stage) -> None:
    stage.engine.add([node("node1")])
    stage.engine.step()
    stage.serve("node1")
    stage.engine.retire(["node1"])
    stage.processes["node1"][-1].returncode = -9
    for _ in range(3):
        stage.engine.step()
    assert stage.engine.states() == []
    assert len(stage.processes["node1"]) == 1


def test_a_node_that_does_not_serve_yet_is_told_to_end_at_once(stage: Stage) -> None:
    stage.engine.add([node("node1")])
    stage.engine.step()
    stage.engine.retire(["node1"])
    assert stage.processes["node1"][-1].received == [signal.SIGTERM]


def test_a_node_that_left_before_it_served_is_never_asked_for_its_port_may_be_anothers(stage: Stage) -> None:
    stage.engine.add([node("node3")])
    stage.engine.step()
    url = stage.url("node3")
    stage.engine.retire(["node3"])
    stage.engine.step()
    stage.processes["node3"][-1].returncode = 0
    stage.engine.step()
    assert stage.stands() == {}
    assert stage.leaving[url].ended
    assert not stage.leaving[url].asked


@pytest.mark.parametrize("how", ["it may end", "it dies"])
def test_a_node_that_has_left_is_not_asked_any_more(stage: Stage, how: str) -> None:
    stage.engine.add([node("node1")])
    stage.engine.step()
    stage.serve("node1")
    url = stage.url("node1")
    stage.engine.retire(["node1"])
    stage.engine.step()
    assert stage.leaving[url].asked
    assert not stage.leaving[url].ended
    stage.leaving[url].may_end = how == "it may end"
    stage.processes["node1"][-1].returncode = None if how == "it may end" else -9
    stage.engine.step()
    assert stage.leaving[url].ended


def test_retiring_a_node_twice_is_retiring_it(stage: Stage) -> None:
    stage.engine.add([node("node1")])
    stage.engine.step()
    stage.serve("node1")
    stage.engine.retire(["node1"])
    first = stage.leaving[stage.url("node1")]
    stage.engine.retire(["node1"])
    assert stage.leaving[stage.url("node1")] is first


def test_the_end_ends_nodes_that_were_leaving_too(stage: Stage) -> None:
    stage.engine.add([node("node1"), node("node2", 2)])
    stage.engine.step()
    stage.serve("node1", "node2")
    leaving_url = stage.url("node1")
    stage.engine.retire(["node1"])
    stage.engine.stop(lambda seconds: False)
    assert [stage.processes[name][-1].received for name in ("node1", "node2")] == [[signal.SIGTERM]] * 2
    assert stage.leaving[leaving_url].ended


def test_the_machine_says_what_it_has(stage: Stage) -> None:
    (machine,) = stage.engine.machines()
    assert machine.memory_bytes > 0
    assert machine.bytes_per_second > 10**8
    assert machine.cpus >= 1


def test_a_nodes_process_has_the_users_environment_its_own_place_and_no_other_meshs_options(tmp_path: Path) -> None:
    make = local_child({"PATH": "/bin", "MESHNET_KV_TTL_SECONDS": "5", "MESHNET_HEADS": "x"}, tmp_path, tmp_path)
    assert make(node("node1"), 8001).env == {
        "PATH": "/bin",
        "MESHNET_SECRET": "s",
        "MESHNET_BIND": "127.0.0.1:8001",
        "MESHNET_URL": "http://127.0.0.1:8001",
        "MESHNET_VAR_DIR": str(tmp_path),
    }


def test_a_node_that_came_later_by_an_order_from_another_thread_ends_with_a_killed_launcher(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.unit.meshsite.scaled", str(free_ports(2)), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        children = [int(pid) for pid in launcher.stdout.readline().split()]
        assert len(children) == 2
        launcher.kill()
        assert all(wait_for_end(child) for child in children)
