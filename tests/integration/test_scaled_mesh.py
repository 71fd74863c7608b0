"""`manage.py mesh` and `mesh_scale` as an operator uses them, on a toy model. MESHNET_SCALING_TESTS=1 turns them on.

`make test-scaling` does; the suite has the same in short (test_scaling.py, tests/unit/meshsite/test_local_engine.py).
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.processes import wait_until
from tests.real import RealMesh, running_mesh
from tests.steady_chats import SteadyChats
from tests.unit.meshsite.children import free_ports, wait_for_end

pytestmark = pytest.mark.skipif(
    os.environ.get("MESHNET_SCALING_TESTS") != "1", reason="set MESHNET_SCALING_TESTS=1 (make test-scaling does)"
)


def scale(mesh: RealMesh, replicas: int) -> dict[str, Any]:
    done = mesh.manage("mesh_scale", "--replicas", str(replicas), "--json")
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def listed(mesh: RealMesh) -> list[str]:
    done = mesh.manage("kv_sessions", "--json")
    assert done.returncode == 0, done.stderr
    return [node["url"] for node in json.loads(done.stdout)["nodes"]]


def rows(mesh: RealMesh) -> list[str]:
    with closing(sqlite3.connect(mesh.var_dir / "meshnet.sqlite3")) as database:
        return [url for (url,) in database.execute("SELECT url FROM nodes_node ORDER BY url")]


def children(mesh: RealMesh) -> list[int]:
    pid = mesh.process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_two_heads_go_on_while_replicas_come_and_go_and_everything_written_follows(
    toy_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    arguments = ("--heads", "2", "--port", str(free_ports(6)))
    with running_mesh(tmp_path / "var", *arguments, folder=toy_folder("llama")) as mesh:
        key, first = mesh.data["api_key"], mesh.data["nodes"]
        chats = [SteadyChats(head, key, mesh.model, chats=4) for head in mesh.data["heads"]]
        with chats[0].running(), chats[1].running():
            report = scale(mesh, 2)
            assert [(node["name"], node["replica"]) for node in report["nodes"]] == [
                ("node1", 1), ("node2", 1), ("node3", 2), ("node4", 2),
            ]  # fmt: skip
            urls = {node["name"]: node["url"] for node in report["nodes"]}
            assert listed(mesh) == [urls[name] for name in ("node1", "node3", "node2", "node4")]
            assert [node["name"] for node in scale(mesh, 1)["nodes"]] == ["node1", "node2"]
            assert listed(mesh) == first
        wait_until(lambda: rows(mesh) == sorted(first), 30, "rows of retired nodes stay")


def test_what_waits_brings_a_replica_and_a_killed_launcher_leaves_nothing_behind(
    toy_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("--shards", "1", "--max-replicas", "2", "--port", str(free_ports(4)))
    with running_mesh(tmp_path / "var", *arguments, folder=toy_folder("llama")) as mesh:
        chats = SteadyChats(mesh.data["head"], mesh.data["api_key"], mesh.model, chats=16)
        with chats.running():
            done = mesh.manage("mesh_scale", "--replicas", "3")
            assert done.returncode == 1
            assert "This mesh can have 1 to 2 replicas (--max-replicas), not 3" in done.stderr

            def both_serve() -> bool:
                return bool(json.loads(mesh.manage("mesh_scale", "--json").stdout)["serving"] == 2)

            wait_until(both_serve, 90, "no replica was added")
        processes = children(mesh)
        assert len(processes) == 3
        mesh.process.send_signal(signal.SIGKILL)
        assert all(wait_for_end(process) for process in processes)
        done = mesh.manage("mesh_scale")
        assert done.returncode == 1
        assert "No mesh is running" in done.stderr
