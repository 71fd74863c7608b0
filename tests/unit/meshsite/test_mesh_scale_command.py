from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from meshsite import control_socket
from meshsite.control_socket import ControlSocket, NoAnswer
from meshsite.engine import Stand
from meshsite.management.commands import mesh_scale
from meshsite.replicas import Replicas
from meshsite.scaler import Scaler
from tests.conftest import Clock
from tests.unit.meshsite.fake_engine import FakeEngine, Names


class Stage:
    """A mesh whose launcher looks at it whenever the command pauses; `then` is what happens besides, one by one."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.engine = FakeEngine()
        self.replicas = Replicas(self.engine, Names().make, lambda line: None, wanted=1, most=16)
        self.scaler = Scaler(self.replicas, lambda line: None)
        self.then: list[Any] = []
        self.out, self.err = io.StringIO(), io.StringIO()
        self.scaler.step()
        self.engine.all_serve()
        self.scaler.step()

    def _pause(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.scaler.step()
        if self.then:
            self.then.pop(0)()
            self.scaler.step()

    def __call__(self, *arguments: str) -> None:
        command = mesh_scale.Command(stdout=self.out, stderr=self.err)
        command.pause = self._pause
        command.clock = self.clock
        call_command(command, *arguments)


@pytest.fixture
def stage(tmp_path: Path, clock: Clock, settings: Any) -> Iterator[Stage]:
    settings.MESHNET_VAR_DIR = tmp_path
    stage = Stage(clock)
    with ControlSocket(tmp_path, stage.scaler.answer):
        yield stage


def test_it_tells_the_mesh_shows_progress_and_returns_when_it_is_so(stage: Stage) -> None:
    stage.then = [lambda: None, stage.engine.all_serve]
    stage("--replicas", "2")
    lines = stage.out.getvalue().splitlines()
    assert "serving: 1, wanted: 2; node3 starting, node4 starting" in lines
    assert "serving: 2, wanted: 2" in lines
    assert lines[-1] == "2 of 2 replicas serve; no autoscaling."
    assert "node4  2        2:4     ready  http://node4" in stage.out.getvalue()


def test_down_waits_until_the_replica_has_left(stage: Stage) -> None:
    stage.then = [stage.engine.all_serve]
    stage("--replicas", "2")
    stage.then = [lambda: None, stage.engine.all_leave]
    stage("--replicas", "1")
    assert list(stage.engine.nodes) == ["node1", "node2"]
    assert "serving: 1, wanted: 1; node3 leaving, node4 leaving" in stage.out.getvalue()


def test_without_a_number_it_shows_how_things_stand(stage: Stage) -> None:
    stage()
    assert stage.out.getvalue().splitlines() == [
        "NODE   REPLICA  LAYERS  STATE  URL           REASON",
        "node1  1        0:2     ready  http://node1",
        "node2  1        2:4     ready  http://node2",
        "",
        "1 of 1 replicas serve; no autoscaling.",
    ]


def test_json_is_one_object_and_the_rest_stands_elsewhere(stage: Stage) -> None:
    stage.then = [stage.engine.all_serve]
    stage("--replicas", "2", "--json")
    report = json.loads(stage.out.getvalue())
    assert (report["replicas"], report["serving"], report["order"]["progress"]) == (2, 2, "reached")
    assert "serving: 1, wanted: 2" in stage.err.getvalue()


def test_a_node_that_refuses_is_an_error_with_its_reason(stage: Stage) -> None:
    stage.then = [lambda: stage.engine.become("node3", Stand.REFUSED, "the shoe does not fit")]
    with pytest.raises(CommandError, match=r"^2 replicas cannot be had: node3: the shoe does not fit$"):
        stage("--replicas", "2")


def test_when_time_is_over_it_says_how_far_it_is(stage: Stage) -> None:
    with pytest.raises(CommandError, match=r"After 5 s it is not so yet: serving: 1, wanted: 2; node3 starting"):
        stage("--replicas", "2", "--timeout", "5")


class Silent:
    """A mesh that does not answer `times` times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
        self._ask, self._left = control_socket.ask, times
        monkeypatch.setattr(control_socket, "ask", self)

    def __call__(self, var_dir: Path, request: Any) -> dict[str, Any]:
        if request == {"do": "status"} and self._left:
            self._left -= 1
            raise NoAnswer("The mesh is busy.")
        return self._ask(var_dir, request)


def test_a_mesh_that_is_too_busy_to_answer_for_a_while_is_asked_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    Silent(monkeypatch, mesh_scale.UNANSWERED - 1)
    stage.then = [stage.engine.all_serve]
    stage("--replicas", "2")
    assert stage.out.getvalue().splitlines()[-1] == "2 of 2 replicas serve; no autoscaling."


def test_a_mesh_that_does_not_answer_any_more_is_an_error(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    Silent(monkeypatch, mesh_scale.UNANSWERED)
    with pytest.raises(CommandError, match="The mesh is busy"):
        stage("--replicas", "2")


def test_another_request_in_between_is_an_error(stage: Stage) -> None:
    stage.then = [lambda: stage.scaler.order(3)]
    with pytest.raises(CommandError, match="Another request came in between: 3 replicas are wanted now"):
        stage("--replicas", "2")


@pytest.mark.parametrize("number", ["0", "-3", "17"])
def test_a_number_out_of_bounds_is_an_error(stage: Stage, number: str) -> None:
    with pytest.raises(CommandError, match=f"This mesh can have 1 to 16 replicas, not {number}"):
        stage("--replicas", number)


def test_without_a_mesh_it_is_an_error_that_says_what_to_do(tmp_path: Path, settings: Any) -> None:
    settings.MESHNET_VAR_DIR = tmp_path
    with pytest.raises(CommandError, match=r"No mesh is running on .*: start one with `manage.py mesh`"):
        call_command("mesh_scale", "--replicas", "2")


def test_a_time_that_is_none_is_an_error(stage: Stage) -> None:
    with pytest.raises(CommandError, match="--timeout nan"):
        stage("--replicas", "2", "--timeout", "nan")
