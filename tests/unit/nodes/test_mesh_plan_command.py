from __future__ import annotations

import json
import shutil
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from nodes.management.commands.mesh_plan import Command
from nodes.split import split
from tests.unit.nodes.manage import manage

MACHINES = ("--machine", "a=4GiB@2MB,cpus=4", "--machine", "b=4GiB@1MB,gpus=1")


@pytest.fixture
def folder(toy_folder: Any, tmp_path: Path) -> Path:
    """The configuration alone: nothing that could be loaded is there."""
    made = tmp_path / "config-only"
    made.mkdir()
    shutil.copy(toy_folder("llama") / "config.json", made)
    return made


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("mesh_plan", *arguments, stdout=out)
    return out.getvalue()


def test_it_prints_a_line_for_each_stage_and_the_time_of_a_token(folder: Path) -> None:
    text = run("--model", str(folder), *MACHINES)
    header, first, second = text.split("\n\n")[0].splitlines()
    assert header.split()[:4] == ["STAGE", "LAYERS", "MACHINES", "WEIGHTS"]
    assert first.split()[:3] == ["1", "0:3", "a"] and second.split()[:3] == ["2", "3:4", "b"]
    assert "with 8 sessions of 512 tokens" in text
    assert "Expected per token of one session:" in text and "Many sessions wait for the slowest stage:" in text


def test_it_prints_json_that_adds_up(folder: Path, settings: Any) -> None:
    settings.MESHNET_KV_MAX_SESSIONS = 3
    data = json.loads(
        run("--model", str(folder), *MACHINES, "--json", "--context", "100", "--hop-ms", "4", "--layer-ms", "2")
    )
    first, second = data["stages"]
    assert (data["context_length"], data["dtype"], data["replicas"]) == (100, "float32", 1)
    assert first["cache_bytes"] == 3 * 100 * 3 * 2 * 2 * 16 * 4  # sessions, tokens, layers, keys and values
    assert first["memory_bytes"] == first["weight_bytes"] + first["cache_bytes"] + 2**30
    assert first["compute_ms"] == pytest.approx(first["weight_bytes"] / 2e6 * 1e3 + 6)
    assert data["token_ms"] == first["compute_ms"] + second["compute_ms"] + 8
    assert (first["cpus"], second["gpus"]) == (4, 1)


def test_it_says_whether_the_plan_is_proven_to_be_the_best(folder: Path, monkeypatch: Any) -> None:
    assert json.loads(run("--model", str(folder), *MACHINES, "--json"))["proven_best"] is True
    assert "proven" not in run("--model", str(folder), *MACHINES)
    monkeypatch.setattr("nodes.mesh_plan.split", lambda *args, **more: replace(split(*args, **more), proven=False))
    assert json.loads(run("--model", str(folder), *MACHINES, "--json"))["proven_best"] is False
    assert "The best split found within the bound of the search, not proven" in run("--model", str(folder), *MACHINES)


def test_a_cut_by_hand_and_replicas(folder: Path) -> None:
    text = run("--model", str(folder), *MACHINES, "--layers", "0:1,1:4", "--replicas", "2")
    first, second = text.splitlines()[1:3]
    assert first.split()[1:4] == ["0:1", "a,", "b"] and second.split()[1:4] == ["1:4", "a,", "b"]
    assert "Each stage stands 2 times" in text


def test_without_machines_it_is_this_one_measured(folder: Path, monkeypatch: Any) -> None:
    asked = {}
    monkeypatch.setattr("nodes.machine_speed.measure_speed", lambda **options: asked.update(options) or 5e6)
    monkeypatch.setattr("nodes.machine_speed.available_bytes", lambda: 4 * 2**30)
    data = json.loads(run("--model", str(folder), "--json", "--dtype", "bfloat16", "--layer-ms", "0"))
    stages = data["stages"]
    assert [stage["machines"] for stage in stages] == [["this machine"]] * 2
    assert stages[0]["compute_ms"] == stages[0]["weight_bytes"] * 2 / 5e6 * 1e3
    assert data["token_ms"] == pytest.approx(sum(stage["weight_bytes"] for stage in stages) / 5e6 * 1e3 + 3)
    assert (asked["device"], asked["dtype"]) == ("cpu", "bfloat16")


def test_a_machine_that_does_not_say_its_memory_has_to_be_named(folder: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("nodes.machine_speed.measure_speed", lambda **options: 5e6)
    monkeypatch.setattr("nodes.machine_speed.available_bytes", lambda: None)
    with pytest.raises(CommandError, match="--machine here=8GiB"):
        run("--model", str(folder))


def test_a_machine_without_a_speed_is_as_fast_as_this_one(folder: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("nodes.machine_speed.measure_speed", lambda **options: 5e6)
    machines = ("--machine", "a=4GiB", "--machine", "b=4GiB")
    stages = json.loads(run("--model", str(folder), "--json", "--layer-ms", "0", *machines))["stages"]
    assert stages[0]["compute_ms"] == stages[0]["weight_bytes"] / 5e6 * 1e3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--shards", "5"), "1 to 4 stages, not 5"),
        (("--layers", "0:2,2:9"), "not all of the layers 0:4"),
        (("--machine", "c=1MiB@1MB", "--shards", "1", "--machine", "c=2MiB@1MB"), "same name"),
        (("--model", "no-such-model"), "There is no model 'no-such-model'"),
    ],
)
def test_what_cannot_be_planned_is_said(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(CommandError, match=message) as caught:
        run("--model", str(folder), *MACHINES, *arguments)
    assert caught.value.returncode == 1


def test_what_does_not_fit_is_refused_with_what_is_missing(folder: Path) -> None:
    with pytest.raises(CommandError, match=r"missing\. Name more machines"):
        run("--model", str(folder), "--machine", "a=1MiB@1MB")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--machine", "a"), "is not NAME=MEMORY"),
        (("--machine", "a=8G"), "'8G' is not a size"),
        (("--machine", "a=4GiB@0"), "'0' is not a speed"),
        (("--shards", "0"), "'0' is not a whole number above 0"),
        (("--layers", "0:2;2:4"), "is not start:end"),
        (("--layers", "0:4", "--shards", "2"), "not allowed with"),
        (("--hop-ms", "-1"), "not a number of milliseconds"),
    ],
)
def test_wrong_usage_is_said(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(CommandError, match=message):
        run("--model", str(folder), *arguments)


def test_its_exit_codes_are_in_its_help_and_true(tmp_path: Path) -> None:
    text = " ".join(Command().create_parser("manage.py", "mesh_plan").format_help().split())
    assert "Exit codes: 0 planned; 1 it cannot be done so; 2 wrong usage." in text
    refused = manage("mesh_plan", *MACHINES, *MACHINES, var_dir=tmp_path)  # before torch is loaded
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "same name" in refused.stderr and "Traceback" not in refused.stderr
    assert manage("mesh_plan", "--shards", "ten", var_dir=tmp_path).returncode == 2
