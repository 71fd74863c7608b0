from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from tests.unit.nodes.fake_node import FakeNode, session_id
from tests.unit.nodes.manage import manage

Mesh = Callable[..., None]
A, B, C = session_id("a"), session_id("b"), session_id("c")


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("kv_evict", *arguments, stdout=out)
    return out.getvalue()


@pytest.fixture
def two_nodes(front: FakeNode, back: FakeNode, mesh: Mesh) -> None:
    mesh(front, back)
    for node in (front, back):
        node.hold(A, idle=700)
        node.hold(B, idle=5)


@pytest.mark.usefixtures("two_nodes")
def test_it_evicts_a_session_on_every_node(front: FakeNode, back: FakeNode) -> None:
    text = run("--session", A)
    assert (list(front.sessions), list(back.sessions)) == ([B], [B])
    assert [line.split() for line in text.splitlines()[:3]] == [
        ["NODE", "SESSION", "RESULT"],
        [front.url, A, "evicted"],
        [back.url, A, "evicted"],
    ]
    assert text.splitlines()[-1] == "1 session on 2 nodes evicted."


@pytest.mark.usefixtures("two_nodes")
def test_it_evicts_several_sessions_and_can_be_bound_to_a_node(front: FakeNode, back: FakeNode) -> None:
    run("--session", A, "--session", B, "--node", back.url)
    assert (list(front.sessions), list(back.sessions)) == ([A, B], [])


@pytest.mark.usefixtures("two_nodes")
@pytest.mark.parametrize(("time", "left"), [("600", [B]), ("10m", [B]), ("1h", [A, B]), ("1s", [])])
def test_it_evicts_what_was_idle_for_longer(front: FakeNode, time: str, left: list[str]) -> None:
    run("--idle-longer-than", time)
    assert list(front.sessions) == left


@pytest.mark.usefixtures("two_nodes")
def test_it_evicts_all_and_says_in_json_what_it_did(front: FakeNode, back: FakeNode) -> None:
    assert json.loads(run("--all", "--json")) == {
        "dry_run": False,
        "nodes": [
            {"url": front.url, "evicted": [A, B], "unknown": [], "error": None},
            {"url": back.url, "evicted": [A, B], "unknown": [], "error": None},
        ],
        "unknown": [],
    }
    assert front.evictions["operator"] == 2


def test_nothing_to_evict_is_no_error(front: FakeNode, mesh: Mesh) -> None:
    mesh(front)
    text = run("--all")
    assert "nothing to evict" in text
    assert text.splitlines()[-1] == "0 sessions on 0 nodes evicted."


@pytest.mark.usefixtures("two_nodes")
@pytest.mark.parametrize("selection", [("--all",), ("--session", A), ("--idle-longer-than", "0")])
def test_a_dry_run_evicts_nothing(front: FakeNode, back: FakeNode, selection: tuple[str, ...]) -> None:
    text = run(*selection, "--dry-run")
    assert A in text
    assert text.splitlines()[-1].endswith("on 2 nodes would be evicted.")
    assert json.loads(run(*selection, "--dry-run", "--json"))["dry_run"] is True
    for node in (front, back):
        assert list(node.sessions) == [A, B]
        assert not [request for request in node.requests if request.startswith("POST")]


@pytest.mark.usefixtures("two_nodes")
@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)])
def test_f04_an_unknown_session_fails_and_the_known_one_is_done(front: FakeNode, dry_run: tuple[str, ...]) -> None:
    out = StringIO()
    with pytest.raises(CommandError, match=f"No node that answered holds session {C}") as caught:
        call_command("kv_evict", "--session", A, "--session", C, "--json", *dry_run, stdout=out)
    assert caught.value.returncode == 1
    said = json.loads(out.getvalue())
    assert said["unknown"] == [C]
    assert [node["evicted"] for node in said["nodes"]] == [[A], [A]]
    assert (A in front.sessions) == bool(dry_run)


def test_a_session_on_some_nodes_only_is_known(front: FakeNode, back: FakeNode, mesh: Mesh) -> None:
    mesh(front, back)
    back.hold(A)
    assert "not held" in run("--session", A)


def test_it_does_what_can_be_done_and_fails_for_the_node_that_is_down(front: FakeNode, dead: str, mesh: Mesh) -> None:
    mesh(dead, front)
    front.hold(A)
    out = StringIO()
    with pytest.raises(CommandError, match=f"{dead} cannot be reached"):
        call_command("kv_evict", "--all", stdout=out)
    assert front.sessions == {}
    assert [line.split() for line in out.getvalue().splitlines()[1:3]] == [
        [dead, "-", "failed"],
        [front.url, A, "evicted"],
    ]


def test_it_fails_with_advice_when_there_is_no_mesh(settings: Any, tmp_path: Path) -> None:
    settings.MESHNET_NODES = []
    settings.MESHNET_VAR_DIR = tmp_path
    with pytest.raises(CommandError, match=r"manage\.py mesh"):
        run("--all")


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--dry-run",),
        ("--all", "--session", A),
        ("--idle-longer-than", "soon"),
        ("--idle-longer-than", "-1"),
    ],
)
def test_a_wrong_selection_is_refused_before_any_node_is_asked(
    front: FakeNode, mesh: Mesh, arguments: tuple[str, ...]
) -> None:
    mesh(front)
    with pytest.raises(CommandError):
        run(*arguments)
    assert front.requests == []


def test_f04_it_acts_on_the_running_node_from_another_process(front: FakeNode, tmp_path: Path) -> None:
    front.hold(A)
    done = manage("kv_evict", "--session", A, var_dir=tmp_path, nodes=(front,))
    assert (done.returncode, done.stderr) == (0, "")
    assert front.sessions == {}
    again = manage("kv_evict", "--session", A, var_dir=tmp_path, nodes=(front,))
    assert again.returncode == 1
    assert f"No node that answered holds session {A}." in again.stderr


def test_a_session_id_may_begin_with_a_dash(front: FakeNode, tmp_path: Path) -> None:
    dashed = "-" + A[1:]
    front.hold(dashed)
    done = manage("kv_evict", "--session", dashed, "--json", var_dir=tmp_path, nodes=(front,))
    assert done.returncode == 0, done.stderr
    assert front.sessions == {}
    missing = manage("kv_evict", "--session", "--json", var_dir=tmp_path, nodes=(front,))
    assert missing.returncode == 2


def test_f04_a_node_that_is_down_is_not_a_success(dead: str, tmp_path: Path) -> None:
    done = manage("kv_evict", "--all", var_dir=tmp_path, nodes=(dead,))
    assert done.returncode == 1
    assert f"{dead} cannot be reached" in done.stderr
    assert "Traceback" not in done.stderr


def test_its_exit_codes_are_in_its_help_and_wrong_usage_is_2(tmp_path: Path) -> None:
    wrong = manage("kv_evict", var_dir=tmp_path)
    assert wrong.returncode == 2
    assert "one of the arguments --session --idle-longer-than --all is required" in wrong.stderr
    text = " ".join(manage("kv_evict", "--help", var_dir=tmp_path).stdout.split())
    assert "Exit codes: 0 all was done" in text
    assert "2 wrong usage." in text
