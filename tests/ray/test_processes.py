"""Nothing outlives the launcher, whether Ray is its own or not; what must not be seen is not to be found."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from nodes.model_manifest import MANIFEST
from tests.processes import wait_until
from tests.ray.machines import RayMachines, wait_gone
from tests.ray.mesh import end, ray_only, start_mesh, wait_whole

pytestmark = ray_only

Folder = Callable[[str], Path]


def below(pid: int) -> list[int]:
    """The process and all that it has started, by and by."""
    import psutil

    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def named(pids: list[int], *words: str) -> list[int]:
    """Those whose command line holds one of the words."""
    import psutil

    lines = {pid: " ".join(psutil.Process(pid).cmdline()) for pid in pids if psutil.pid_exists(pid)}
    return [pid for pid, line in lines.items() if any(word in line for word in words)]


def nodes_of(machines: RayMachines, before: set[int]) -> list[int]:
    """Actors and node processes that are there since `before`."""
    return named([pid for pid in all_of(machines) if pid not in before], "NodeActor", "gunicorn")


def all_of(machines: RayMachines) -> set[int]:
    return {pid for address in machines.raylets for pid in machines.pids(address)}


def test_a_killed_actor_comes_back_with_its_node_and_of_a_killed_launcher_nothing_is_left_on_the_cluster(
    machines: RayMachines, toy_folder: Folder, var_dir: Path
) -> None:
    before = all_of(machines)
    arguments = ["--address", machines.address, "--model", str(toy_folder("llama"))]
    mesh = start_mesh(var_dir, *arguments, environ=machines.environ)
    try:
        nodes, own = nodes_of(machines, before), below(mesh.process.pid)
        assert len(nodes) == 6, "two actors, and gunicorn's master and worker under each"
        look_for_the_secret(machines, mesh.data, [*nodes, *own])

        tree = below(named(nodes, "NodeActor")[0])
        assert len(tree) == 3
        os.kill(tree[0], signal.SIGKILL)
        wait_gone(tree)
        wait_whole(mesh, 1, 60)
        assert mesh.ask("hello", 4)

        nodes, own = nodes_of(machines, before), below(mesh.process.pid)
        mesh.process.kill()
        wait_gone([*nodes, *own], 30)
        assert machines.raylets.keys() == {"127.0.0.2", "127.0.0.3", "127.0.0.4"}
        assert not nodes_of(machines, before)
    finally:
        mesh.process.kill()
        end(mesh)


def look_for_the_secret(machines: RayMachines, data: dict[str, Any], pids: list[int]) -> None:
    """It is in no file of Ray's session and on no command line."""
    secret = str(data["mesh_secret"]).encode()
    files = [path for path in machines.session.rglob("*") if path.is_file() and not path.is_symlink()]
    assert any(path.name.startswith("gcs_server") for path in files), "the logs are elsewhere"
    assert not [path for path in files if secret in path.read_bytes()]
    everywhere = [Path("/proc", name, "cmdline") for name in os.listdir("/proc") if name.isdigit()]
    lines = {path: read(path) for path in everywhere}
    assert {Path("/proc", str(pid), "cmdline") for pid in pids} <= lines.keys()
    assert not [path for path, line in lines.items() if secret in line]


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it has ended meanwhile
        return b""


def test_of_a_killed_launcher_the_ray_that_it_started_is_gone_too(toy_folder: Folder, var_dir: Path) -> None:
    mesh = start_mesh(var_dir, "--model", str(toy_folder("llama")))
    try:
        pids = below(mesh.process.pid)
        assert len(named(pids, "raylet/raylet", "gcs_server")) == 2
        assert len(named(pids, "gunicorn_node")) == 4
        assert mesh.ask("hello", 4)
        mesh.process.kill()
        wait_gone(pids, 30)
    finally:
        mesh.process.kill()
        end(mesh)


def test_a_plain_end_leaves_nothing_and_says_nothing_of_trouble(toy_folder: Folder, var_dir: Path) -> None:
    mesh = start_mesh(var_dir, "--model", str(toy_folder("llama")))
    pids = below(mesh.process.pid)
    end(mesh)
    assert mesh.process.returncode == 0, mesh.log.read_text()
    wait_gone(pids, 2)
    lines = mesh.log.read_text().splitlines()
    assert lines[-1] == "The mesh has ended."
    assert not [line for line in lines if "Warning" in line or "Killing" in line or "Traceback" in line]


@pytest.fixture
def broken_model(toy_folder: Folder, tmp_path: Path) -> Path:
    """A model whose last layer computes nonsense, which the proof of its node finds."""
    folder = tmp_path / "broken"
    shutil.copytree(toy_folder("llama"), folder)
    (folder / MANIFEST).unlink(missing_ok=True)
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.3.mlp.down_proj.weight"].fill_(float("nan"))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_a_node_that_refuses_is_reported_and_not_tried_again(
    machines: RayMachines, broken_model: Path, var_dir: Path
) -> None:
    before = all_of(machines)
    with pytest.raises(AssertionError, match=r"node2 cannot serve: The layers turn ordinary input into NaN") as refused:
        start_mesh(var_dir, "--address", machines.address, "--model", str(broken_model), environ=machines.environ)
    assert "Traceback" not in str(refused.value)
    wait_until(lambda: not nodes_of(machines, before), 20)
    assert (var_dir / "logs" / "node2.log").read_text().count("Refused to start") == 1
    assert not (var_dir / "logs" / "node2.log.old").exists()


def test_a_cluster_that_is_not_there_is_one_clear_line(toy_folder: Folder, var_dir: Path) -> None:
    with pytest.raises(AssertionError, match=r"CommandError: The Ray cluster 127\.0\.0\.1:1 cannot be used") as refused:
        start_mesh(var_dir, "--address", "127.0.0.1:1", "--model", str(toy_folder("llama")))
    assert "Traceback" not in str(refused.value)
