from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from tests.unit.nodes.conftest import MakeNode
from tests.unit.nodes.fake_node import SECRET, FakeNode
from tests.unit.nodes.manage import manage

Mesh = Callable[..., None]


def run(*arguments: str) -> tuple[str, str]:
    """What it wrote to standard output and error; raises what it fails with."""
    out, err = StringIO(), StringIO()
    call_command("mesh_status", *arguments, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def failing(*arguments: str) -> tuple[str, str]:
    """What it wrote to standard output, and why it failed."""
    out = StringIO()
    with pytest.raises(CommandError) as caught:
        call_command("mesh_status", *arguments, stdout=out)
    assert caught.value.returncode == 1
    return out.getvalue(), str(caught.value)


def test_it_lists_nodes_and_who_holds_which_layers(front: FakeNode, back: FakeNode, mesh: Mesh) -> None:
    mesh(front, back)
    nodes, layers, summary = run()[0].strip().split("\n\n")
    assert [line.split() for line in nodes.splitlines()] == [
        ["NODE", "STATE", "LAYERS", "MODEL", "DTYPE", "DEVICE", "VERSION", "LEFT", "OUT"],
        [front.url, "ready", "0:15", "toy", "float32", "cpu", "0.1.0"],
        [back.url, "ready", "15:30", "toy", "float32", "cpu", "0.1.0"],
    ]
    assert [line.split() for line in layers.splitlines()[1:]] == [["0:15", front.url], ["15:30", back.url]]
    assert summary == "30 of 30 layers are covered, each at least once."


def test_uncovered_layers_are_code_1(front: FakeNode, mesh: Mesh) -> None:
    mesh(front)
    text, reason = failing()
    assert reason == "No ready node holds layers 15:30 of 30."
    assert "15:30   nobody, uncovered" in text
    assert "15 of 30 layers are covered, no generation can run." in text


def test_a_draining_node_covers_nothing(front: FakeNode, back: FakeNode, mesh: Mesh) -> None:
    back.state = "draining"
    mesh(front, back)
    text, reason = failing()
    assert reason == "No ready node holds layers 15:30 of 30."
    assert f"{back.url}" in text and "draining" in text


def test_a_dead_node_that_others_replace_is_named_and_no_failure(
    front: FakeNode, back: FakeNode, dead: str, mesh: Mesh
) -> None:
    mesh(front, dead, back)
    text, complaint = run()
    assert f"{dead} cannot be reached" in complaint
    assert "each at least once" in text


def test_a_dead_node_that_is_missing_is_named_in_the_failure(front: FakeNode, dead: str, mesh: Mesh) -> None:
    mesh(front, dead)
    reason = failing()[1]
    assert f"{dead} cannot be reached" in reason and "No ready node holds layers 15:30 of 30." in reason


def test_nobody_answering_is_code_1(dead: str, mesh: Mesh) -> None:
    mesh(dead)
    assert "No node says which layers it holds." in failing()[1]
    report = json.loads(failing("--json")[0])
    assert (report["covered"], report["n_layers"], report["layers_online_min"]) == (False, None, 0)


def test_it_prints_json(make_node: MakeNode, front: FakeNode, back: FakeNode, mesh: Mesh) -> None:
    twin = make_node("0:15")
    mesh(front, back, twin)
    report = json.loads(run("--json")[0])
    assert (report["covered"], report["problem"], report["gaps"]) == (True, None, [])
    assert (report["model"], report["n_layers"], report["layers_online_min"]) == ("toy", 30, 1)
    assert report["stretches"] == [
        {"start": 0, "end": 15, "nodes": [front.url, twin.url]},
        {"start": 15, "end": 30, "nodes": [back.url]},
    ]
    assert [node["state"] for node in report["nodes"]] == ["ready"] * 3


def test_json_of_a_gap_is_whole_and_code_1(front: FakeNode, mesh: Mesh) -> None:
    mesh(front)
    report = json.loads(failing("--json")[0])
    assert (report["covered"], report["gaps"]) == (False, [[15, 30]])


def test_it_fails_with_advice_when_there_is_no_mesh(settings: Any, tmp_path: Path) -> None:
    settings.MESHNET_NODES = []
    settings.MESHNET_VAR_DIR = tmp_path
    assert "manage.py mesh" in failing()[1]


def test_a_monitor_sees_the_exit_code(front: FakeNode, back: FakeNode, tmp_path: Path) -> None:
    assert manage("mesh_status", var_dir=tmp_path, nodes=(front, back)).returncode == 0
    done = manage("mesh_status", var_dir=tmp_path, nodes=(front,))
    assert done.returncode == 1
    assert "No ready node holds layers 15:30 of 30." in done.stderr
    assert "Traceback" not in done.stderr
    assert SECRET not in done.stdout + done.stderr


def test_its_exit_codes_are_in_its_help_and_wrong_usage_is_2(tmp_path: Path) -> None:
    assert manage("mesh_status", "--nonsense", var_dir=tmp_path).returncode == 2
    text = " ".join(manage("mesh_status", "--help", var_dir=tmp_path).stdout.split())
    assert "Exit codes: 0 every layer is covered" in text and "1 layers are uncovered, no node answered" in text
