from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from meshsite.engine import EngineRefused
from meshsite.planned_split import machine_text, plan_split
from meshsite.stop_signals import Stopped
from nodes.layers import LayerRange
from nodes.machines import Machine
from nodes.mesh_plan import MachineText

MACHINES = [Machine("10.0.0.7 (ray)", 4 * 2**30, 2e6, cpus=4.0), Machine("b", 4 * 2**30, 1e6, cpus=2.0, gpus=0.5)]


class FakeRun:
    """A command that ends so."""

    def __init__(self, returncode: int = 0, stdout: str = "", stderr: str = "") -> None:
        self.ended = (returncode, stdout, stderr)
        self.command: list[str] = []
        self.options: dict[str, Any] = {}

    def __call__(self, command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        self.command, self.options = command, options
        return subprocess.CompletedProcess(command, *self.ended)


def planned(*stages: dict[str, Any]) -> FakeRun:
    base = {"memory_bytes": 9, "cpus": 2.0, "gpus": 0.0, "weight_bytes": 5, "cache_bytes": 3, "compute_ms": 1.0}
    return FakeRun(stdout=json.dumps({"stages": [{**base, **stage} for stage in stages]}))


def test_the_command_plans_it(toy_folder: Any, tmp_path: Path) -> None:
    folder = tmp_path / "config-only"
    folder.mkdir()
    shutil.copy(toy_folder("llama") / "config.json", folder)
    first, second = plan_split(str(folder), 2, MACHINES, context_length=100)
    assert (first.layers, first.machine, first.cpus) == (LayerRange(0, 3), "10.0.0.7 (ray)", 4.0)
    assert (second.layers, second.machine, second.gpus) == (LayerRange(3, 4), "b", 0.5)
    assert first.memory_bytes == first.weight_bytes + first.cache_bytes + 2**30


def test_machines_go_by_number_so_that_any_name_will_do() -> None:
    run = planned({"layers": "0:4", "machines": ["1", "0"]})
    (stage,) = plan_split("m", 1, MACHINES, replicas=2, run=run)
    assert (stage.machine, stage.machines) == ("b", ("b", "10.0.0.7 (ray)"))
    assert run.command[run.command.index("--machine") + 1].startswith("0=")


def test_a_machine_is_written_as_the_command_reads_it() -> None:
    machine = Machine("b", 123456789, 1.2e10, cpus=1 / 3, gpus=0.5)
    assert MachineText.parse(machine_text(machine)) == MachineText("b", 123456789, 1.2e10, 0.333333, 0.5)


@pytest.mark.parametrize(
    ("machine", "read"),
    [
        (Machine("0", 8, 0.2), MachineText("0", 8, 1.0)),
        (Machine("0", 8, 0.0), MachineText("0", 8)),
        (Machine("0", 8, 1e17), MachineText("0", 8, 1e15 - 1)),
        (Machine("0", 0, 5.0), MachineText("0", 1, 5.0)),
        (Machine("0", 8, 5.0, cpus=1e-5, gpus=1e6), MachineText("0", 8, 5.0, 1e-5, 999_999)),
        (Machine("0", 8, 5.0, cpus=1e-9, gpus=123456.25), MachineText("0", 8, 5.0, 0, 123456.25)),
    ],
)
def test_odd_numbers_are_written_so_that_they_can_be_read(machine: Machine, read: MachineText) -> None:
    assert MachineText.parse(machine_text(machine)) == read


def test_a_plan_that_does_not_end_is_refused() -> None:
    def run(command: list[str], *, timeout: float, **options: Any) -> subprocess.CompletedProcess[str]:
        raise subprocess.TimeoutExpired(command, timeout)

    with pytest.raises(EngineRefused, match=r"did not end within 180 s\. Name the cut with --layers"):
        plan_split("m", 1, MACHINES, run=run)


def test_a_stop_ends_the_planning() -> None:
    with pytest.raises(Stopped):
        plan_split("m", 1, MACHINES, wait=lambda seconds: True)


def test_a_cut_by_hand_is_passed_on() -> None:
    run = planned({"layers": "0:4", "machines": ["0"]})
    plan_split("m", 2, MACHINES, layers=[LayerRange(0, 1), LayerRange(1, 4)], dtype="bfloat16", run=run)
    assert "--layers 0:1,1:4" in " ".join(run.command) and "--shards" not in run.command
    assert "--dtype bfloat16" in " ".join(run.command)


def test_settings_are_this_processs_unless_others_are_named(settings: Any) -> None:
    run = planned({"layers": "0:4", "machines": ["0"]})
    plan_split("m", 1, MACHINES, run=run)
    assert run.options["env"] == {**os.environ, "MESHNET_VAR_DIR": str(settings.MESHNET_VAR_DIR)}
    plan_split("m", 1, MACHINES, environ={"MESHNET_KV_MAX_SESSIONS": "2"}, run=run)
    assert run.options["env"] == {"MESHNET_KV_MAX_SESSIONS": "2"}


@pytest.mark.parametrize(
    ("stderr", "reason"),
    [
        ("CommandError: 3 GiB are missing.\n", "3 GiB are missing."),
        ("usage: …\nmanage.py mesh_plan: error: argument --x: no\n", "argument --x: no"),
        ("", "mesh_plan ended without a word."),
    ],
)
def test_a_refusal_is_one_line_with_its_reason(stderr: str, reason: str) -> None:
    with pytest.raises(EngineRefused) as caught:
        plan_split("m", 1, MACHINES, run=FakeRun(1, stderr=stderr))
    assert str(caught.value) == reason


def test_without_machines_there_is_nothing_to_ask() -> None:
    run = FakeRun()
    with pytest.raises(EngineRefused, match="no machine"):
        plan_split("m", 1, [], run=run)
    assert run.command == []


def test_a_launcher_stays_free_of_torch() -> None:
    code = "import django, sys; django.setup(); import meshsite.planned_split; print('torch' in sys.modules)"
    environ = {**os.environ, "DJANGO_SETTINGS_MODULE": "meshsite.settings"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
