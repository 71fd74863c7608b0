from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from tests.unit.nodes.fake_node import SECRET, FakeNode, session_id
from tests.unit.nodes.manage import manage

Mesh = Callable[..., None]

WORK = {
    "steps": {"prefill": 3, "decode": 97, "stateless": 0},
    "tokens": 4096,
    "compute_ms": 7500.0,
    "queue_ms": 500.0,
    "refusals": {"cache_miss": 2, "busy": 4},
    "errors": [],
}


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("kv_stats", *arguments, stdout=out)
    return out.getvalue()


def works(node: FakeNode, work: Any = WORK) -> None:
    """Makes the node say what it has done."""
    node.broken["/status"] = {**node._status(), "work": work, "started_at": 1_700_000_000.0}


def test_it_shows_caches_work_and_reasons_per_node(front: FakeNode, back: FakeNode, mesh: Mesh) -> None:
    mesh(front, back)
    works(front)
    works(back, None)
    front.hold(session_id("a"), past_len=2048)
    front.evictions = {"ttl": 0, "operator": 5}
    caches, work, reasons = (part.splitlines() for part in run().strip().split("\n\n"))
    assert caches[0].split() == [
        "NODE", "STATE", "LAYERS", "SESSIONS", "MOST", "BYTES", "MOST", "BYTES", "LIMIT", "HITS", "MISSES", "EVICTED",
    ]  # fmt: skip
    assert caches[1].split() == [
        front.url, "ready", "0:15", "1/8", "-", "2.0", "MiB", "-", "2.0", "GiB", "7", "2", "5",
    ]  # fmt: skip
    assert work[1].split() == [
        front.url, "3", "97", "0", "4096", "7.5", "s", "0.5", "s", "75.0", "ms", "5.0", "ms", "6",
    ]  # fmt: skip
    assert work[2].split() == [back.url, *["-"] * 9], "an older node does not say what it has done"
    assert [line.split() for line in reasons[1:]] == [
        [front.url, "miss", "unknown_session", "2"],
        [front.url, "eviction", "operator", "5"],
        [front.url, "refusal", "cache_miss", "2"],
        [front.url, "refusal", "busy", "4"],
        [back.url, "miss", "unknown_session", "2"],
    ]


def test_it_prints_json(front: FakeNode, mesh: Mesh) -> None:
    mesh(front)
    works(front)
    [node] = json.loads(run("--json"))["nodes"]
    assert (node["url"], node["state"], node["error"], node["layers"]) == (front.url, "ready", None, "0:15")
    assert node["work"] == WORK
    assert node["stats"]["misses"] == {"unknown_session": 2}
    assert node["limits"]["max_sessions"] == 8
    assert "sessions" not in node, "kv_sessions lists those"


def test_it_can_ask_one_node_alone(front: FakeNode, back: FakeNode, mesh: Mesh) -> None:
    mesh(front, back)
    assert [node["url"] for node in json.loads(run("--json", "--node", back.url))["nodes"]] == [back.url]
    assert front.requests == []


@pytest.mark.parametrize("work", [None, 7, [], {"steps": 5, "tokens": "x", "compute_ms": None, "refusals": []}])
def test_a_node_of_another_version_does_not_break_it(front: FakeNode, mesh: Mesh, work: Any) -> None:
    mesh(front)
    works(front, work)
    assert front.url in run()


def test_it_shows_what_answered_and_fails_for_a_dead_node(front: FakeNode, dead: str, mesh: Mesh) -> None:
    mesh(dead, front)
    out = StringIO()
    with pytest.raises(CommandError, match=f"{dead} cannot be reached") as caught:
        call_command("kv_stats", stdout=out)
    assert caught.value.returncode == 1
    assert [line.split()[:2] for line in out.getvalue().splitlines()[1:3]] == [
        [dead, "unreachable"],
        [front.url, "ready"],
    ]


def test_a_node_that_is_down_is_an_exit_code_and_a_message(dead: str, tmp_path: Path) -> None:
    done = manage("kv_stats", var_dir=tmp_path, nodes=(dead,))
    assert done.returncode == 1
    assert f"{dead} cannot be reached" in done.stderr
    assert "Traceback" not in done.stderr
    assert SECRET not in done.stdout + done.stderr


def test_its_exit_codes_are_in_its_help_and_wrong_usage_is_2(tmp_path: Path) -> None:
    assert manage("kv_stats", "--nonsense", var_dir=tmp_path).returncode == 2
    text = " ".join(manage("kv_stats", "--help", var_dir=tmp_path).stdout.split())
    assert "Exit codes: 0 every node answered; 1 a node or the mesh could not be reached; 2 wrong usage." in text
