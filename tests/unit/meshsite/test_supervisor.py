from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from meshsite.supervisor import ChildSpec, StartFailed, Supervisor, is_ready
from tests.conftest import Clock
from tests.unit.meshsite.children import fake_spec, free_ports, wait_for_end

#: Above Linux's highest process id: a signal for its group reaches nobody.
NOBODY = 2**22 + 1


class FakeProcess:
    """What the supervisor uses of a Popen. `poll` answers the code that a test has set."""

    pid = NOBODY

    def __init__(self) -> None:
        self.returncode: int | None = None
        self.received: list[int] = []

    def poll(self) -> int | None:
        return self.returncode

    def wait(self) -> int:
        self.returncode = self.returncode if self.returncode is not None else -9
        return self.returncode

    def send_signal(self, sig: int) -> None:
        self.received.append(sig)
        self.returncode = 0


class Stage:
    """A supervisor of children that do what the test says, on a clock that the test moves."""

    def __init__(self, tmp_path: Path, clock: Clock, names: tuple[str, ...] = ("one",)) -> None:
        self.clock = clock
        self.said: list[str] = []
        self.answering: set[str] = set()
        self.started: list[FakeProcess] = []
        self.outputs: dict[str, IO[bytes]] = {}
        specs = [ChildSpec(name, ["x"], {}, f"http://{name}", tmp_path) for name in names]
        self.supervisor = Supervisor(
            specs,
            tmp_path / "logs",
            self.said.append,
            clock=clock,
            probe=lambda url: url.removeprefix("http://") in self.answering,
            launch=self._launch,
        )

    def _launch(self, spec: ChildSpec, output: IO[bytes]) -> Any:
        self.outputs[spec.name] = output
        self.started.append(FakeProcess())
        return self.started[-1]

    def writes(self, name: str, text: str) -> None:
        self.outputs[name].write(text.encode())
        self.outputs[name].flush()


@pytest.fixture
def stage(tmp_path: Path, clock: Clock) -> Iterator[Stage]:
    stage = Stage(tmp_path, clock)
    with stage.supervisor:
        yield stage


def pauses_before_restarts(stage: Stage, ends: int) -> list[float]:
    """Lets the child end so often and moves the clock in steps of 0.5 s until it is started again."""
    pauses = []
    for _ in range(ends):
        starts = len(stage.started)
        stage.started[-1].returncode = 1
        stage.supervisor.step()
        waited = 0.0
        while len(stage.started) == starts:
            stage.clock.advance(0.5)
            waited += 0.5
            stage.supervisor.step()
        pauses.append(waited)
    return pauses


def test_a_child_that_keeps_ending_is_started_again_after_longer_and_longer_pauses(stage: Stage) -> None:
    stage.answering.add("one")
    stage.supervisor.step()
    assert pauses_before_restarts(stage, 7) == [1, 2, 4, 8, 16, 30, 30]


def test_the_pauses_start_anew_after_a_child_has_served_for_a_minute(stage: Stage) -> None:
    stage.answering.add("one")
    stage.supervisor.step()
    assert pauses_before_restarts(stage, 3) == [1, 2, 4]
    stage.clock.advance(60)
    assert pauses_before_restarts(stage, 2) == [1, 2]


def test_it_says_when_a_child_serves_again(stage: Stage) -> None:
    stage.answering.add("one")
    stage.supervisor.step()
    pauses_before_restarts(stage, 1)
    assert "one ended with code 1; it is started again in 1 s" in stage.said[1]
    assert stage.said[-1] == "one is ready again after 0 s."


def test_a_refusal_at_the_start_ends_the_start_with_its_reason(stage: Stage) -> None:
    stage.supervisor.step(starting=True)
    stage.writes("one", "[2026-01-01] [7] [ERROR] Refused to start: it has no layers.\n")
    stage.started[0].returncode = 3
    with pytest.raises(StartFailed, match="one cannot serve: it has no layers \\(log: "):
        stage.supervisor.step(starting=True)


def test_a_refusal_later_on_is_not_tried_again(stage: Stage) -> None:
    stage.answering.add("one")
    stage.supervisor.step()
    stage.started[0].returncode = 3
    stage.supervisor.step()
    stage.clock.advance(1000)
    stage.supervisor.step()
    assert len(stage.started) == 1
    assert "It is not started again." in stage.said[-1]


def test_a_child_that_fails_three_times_before_it_ever_answered_ends_the_start(stage: Stage) -> None:
    stage.supervisor.step(starting=True)
    pauses_before_restarts(stage, 2)
    stage.started[-1].returncode = 1
    with pytest.raises(StartFailed, match="it ended with code 1 3 times"):
        stage.supervisor.step(starting=True)


def test_a_child_that_comes_later_is_started_and_watched_like_the_others(stage: Stage, tmp_path: Path) -> None:
    stage.supervisor.step()
    stage.supervisor.add(ChildSpec("two", ["x"], {}, "http://two", tmp_path))
    stage.answering.add("two")
    stage.supervisor.step()
    assert len(stage.started) == 2
    assert stage.said == ["two is ready after 0 s."]


def test_a_dismissed_child_is_told_to_end_and_forgotten_once_it_has(stage: Stage) -> None:
    stage.supervisor.step()
    stage.supervisor.dismiss("one")
    assert stage.started[0].received == [signal.SIGTERM]
    stage.clock.advance(1000)
    stage.supervisor.step()
    assert stage.supervisor.children == []
    assert len(stage.started) == 1


def test_a_dismissed_child_that_does_not_obey_is_killed_after_eight_seconds(stage: Stage) -> None:
    stage.supervisor.step()
    stage.started[0].send_signal = lambda sig: None  # type: ignore[method-assign]
    stage.supervisor.dismiss("one")
    stage.clock.advance(7.9)
    stage.supervisor.step()
    assert len(stage.supervisor.children) == 1
    stage.clock.advance(0.2)
    stage.supervisor.step()
    assert stage.supervisor.children == []
    assert stage.said == ["Killing one."]


def test_a_child_that_the_system_has_no_room_for_is_tried_again_and_the_others_go_on(
    tmp_path: Path, clock: Clock
) -> None:
    stage = Stage(tmp_path, clock, ("one", "two"))
    room = {"one": False}

    def launch(spec: ChildSpec, output: IO[bytes]) -> Any:
        if not room.get(spec.name, True):
            raise OSError(12, "Cannot allocate memory")
        return stage._launch(spec, output)

    stage.supervisor._launch = launch
    with stage.supervisor:
        stage.supervisor.step()
        assert list(stage.outputs) == ["two"]
        assert "one could not be started (Cannot allocate memory); it is started again in 1 s" in stage.said[0]
        room["one"] = True
        clock.advance(1)
        stage.supervisor.step()
        assert list(stage.outputs) == ["two", "one"]


def test_the_reason_of_a_refusal_is_kept(stage: Stage) -> None:
    stage.supervisor.step()
    stage.writes("one", "[2026-01-01] [7] [ERROR] Refused to start: it has no layers.\n")
    stage.started[0].returncode = 3
    stage.supervisor.step()
    assert stage.supervisor.children[0].refusal.startswith("it has no layers (log: ")


def test_an_answer_on_the_port_of_a_child_that_has_ended_is_somebody_elses(stage: Stage) -> None:
    stage.answering.add("one")
    stage.supervisor._launch = lambda spec, output: _ended_at_once()
    stage.supervisor.step()
    assert stage.supervisor.children[0].ready_at is None


def _ended_at_once() -> Any:
    process = FakeProcess()
    process.returncode = 1
    return process


def test_problems_in_a_childs_log_are_said_with_its_name(stage: Stage) -> None:
    stage.supervisor.step()
    stage.writes("one", "[x] [INFO] All is well.\n[x] [ERROR] The roof is on fire.\n2026-01-01 00:00:00,0 ERROR a: b\n")
    stage.supervisor.step()
    assert stage.said == ["one: [x] [ERROR] The roof is on fire.", "one: 2026-01-01 00:00:00,0 ERROR a: b"]


def test_a_flood_of_problems_is_cut_short(stage: Stage) -> None:
    stage.supervisor.step()
    stage.writes("one", "[x] [ERROR] Again.\n" * 5000)
    stage.supervisor.step()
    assert len(stage.said) == 11
    assert "and 4990 more problems" in stage.said[-1]


def test_half_a_line_waits_for_its_other_half(stage: Stage) -> None:
    stage.supervisor.step()
    stage.writes("one", "[x] [ERR")
    stage.supervisor.step()
    assert stage.said == []
    stage.writes("one", "OR] Whole.\n")
    stage.supervisor.step()
    assert stage.said == ["one: [x] [ERROR] Whole."]


def test_the_log_of_the_last_start_is_kept_beside_the_new_one(tmp_path: Path, clock: Clock) -> None:
    for text in ("first\n", "second\n", "third\n"):
        stage = Stage(tmp_path, clock)
        with stage.supervisor:
            stage.supervisor.step()
            stage.writes("one", text)
    assert (tmp_path / "logs" / "one.log").read_text() == "third\n"
    assert (tmp_path / "logs" / "one.log.old").read_text() == "second\n"


def test_waiting_says_who_is_missing_every_ten_seconds(tmp_path: Path, clock: Clock) -> None:
    stage = Stage(tmp_path, clock, ("one", "two"))
    stage.answering.add("one")

    def wait(seconds: float) -> bool:
        clock.advance(5)
        if clock.now >= 1025:
            stage.answering.add("two")
        return False

    with stage.supervisor:
        assert stage.supervisor.wait_until_ready(wait)
    assert [line for line in stage.said if line.startswith("Waiting")] == [
        "Waiting for two (10 s) …",
        "Waiting for two (20 s) …",
    ]


def test_a_stop_before_everybody_is_ready_ends_the_waiting(stage: Stage) -> None:
    assert not stage.supervisor.wait_until_ready(lambda seconds: True)


# -- with processes


@pytest.fixture
def say() -> list[str]:
    return []


@contextlib.contextmanager
def supervised(*specs: ChildSpec, tmp_path: Path, say: list[str], **options: Any) -> Iterator[Supervisor]:
    with Supervisor(specs, tmp_path / "logs", say.append, **options) as supervisor:
        yield supervisor


def never(seconds: float) -> bool:
    return False


def pid_of(supervisor: Supervisor, index: int = 0) -> int:
    process = supervisor.children[index].process
    assert process is not None
    return process.pid


def test_children_serve_until_they_are_stopped_with_sigterm(tmp_path: Path, say: list[str]) -> None:
    port = free_ports(2)
    specs = [fake_spec("one", port), fake_spec("two", port + 1)]
    with supervised(*specs, tmp_path=tmp_path, say=say) as supervisor:
        assert supervisor.wait_until_ready(never)
        processes = [child.process for child in supervisor.children]
        supervisor.stop(never)
        assert [process.returncode for process in processes if process] == [-signal.SIGTERM] * 2
    assert not is_ready(specs[0].url)
    assert not any("Killing" in line for line in say)


def test_children_have_a_process_group_each(tmp_path: Path, say: list[str]) -> None:
    with supervised(fake_spec("one", free_ports(1)), tmp_path=tmp_path, say=say) as supervisor:
        assert supervisor.wait_until_ready(never)
        assert os.getpgid(pid_of(supervisor)) == pid_of(supervisor) != os.getpgid(0)


def test_a_child_that_does_not_obey_is_killed_after_eight_seconds(tmp_path: Path, say: list[str], clock: Clock) -> None:
    spec = fake_spec("one", free_ports(1), FAKE_MODE="stubborn")
    waited = []

    def wait(seconds: float) -> bool:
        waited.append(clock.now)
        clock.advance(1)
        return False

    with supervised(spec, tmp_path=tmp_path, say=say, clock=clock) as supervisor:
        assert supervisor.wait_until_ready(never)
        process = supervisor.children[0].process
        supervisor.stop(wait)
        assert process is not None
        assert process.returncode == -signal.SIGKILL
    assert len(waited) == 8


def test_who_is_asked_to_hurry_kills_at_once(tmp_path: Path, say: list[str]) -> None:
    spec = fake_spec("one", free_ports(1), FAKE_MODE="stubborn")
    with supervised(spec, tmp_path=tmp_path, say=say) as supervisor:
        assert supervisor.wait_until_ready(never)
        supervisor.stop(lambda seconds: True)
    assert say[-1] == "Killing one."


def test_what_a_killed_child_leaves_behind_is_swept_away_and_its_port_used_again(
    tmp_path: Path, say: list[str]
) -> None:
    pid_file = tmp_path / "pid"
    spec = fake_spec("one", free_ports(1), FAKE_MODE="fork", FAKE_PID_FILE=str(pid_file))
    with supervised(spec, tmp_path=tmp_path, say=say) as supervisor:
        assert supervisor.wait_until_ready(never)
        worker, master = int(pid_file.read_text()), supervisor.children[0].process
        assert master is not None
        master.kill()
        assert wait_for_end(master.pid)
        supervisor.step()
        assert wait_for_end(worker)
        assert supervisor.wait_until_ready(never)
        assert pid_of(supervisor) != master.pid
    assert "one was ended by SIGKILL; it is started again in 1 s" in say[1]


def test_a_child_that_refuses_ends_the_start_and_the_others_with_it(tmp_path: Path, say: list[str]) -> None:
    port = free_ports(2)
    specs = [fake_spec("good", port), fake_spec("bad", port + 1, FAKE_MODE="refuse")]
    with supervised(*specs, tmp_path=tmp_path, say=say) as supervisor:
        with pytest.raises(StartFailed, match="bad cannot serve: the shoe does not fit"):
            supervisor.wait_until_ready(never)
        good = pid_of(supervisor)
    assert wait_for_end(good)


def test_children_end_when_their_supervisor_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.unit.meshsite.supervised", str(free_ports(1)), str(tmp_path / "pid")]
    with subprocess.Popen([*command, str(tmp_path / "logs")], stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        child = int(supervisor.stdout.readline())
        supervisor.kill()
        assert wait_for_end(child)


def test_a_childs_environment_stands_in_no_traceback(tmp_path: Path) -> None:
    assert "hidden" not in repr(ChildSpec("one", ["x"], {"MESHNET_SECRET": "hidden"}, "http://one", tmp_path))


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_every_stop_signal_ends_supervisor_and_children_in_order(tmp_path: Path, sig: signal.Signals) -> None:
    command = [sys.executable, "-m", "tests.unit.meshsite.supervised", str(free_ports(1)), str(tmp_path / "pid")]
    with subprocess.Popen([*command, str(tmp_path / "logs")], stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        child = int(supervisor.stdout.readline())
        supervisor.send_signal(sig)
        assert supervisor.wait(timeout=20) == 0
        assert wait_for_end(child, 0)
