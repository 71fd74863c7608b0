"""`manage.py node` against a running head: what it refuses, and two machines that join with one command each."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from nodes.joining import RESERVE_BYTES
from nodes.layer_costs import read_costs
from nodes.layers import LayerRange
from tests import processes
from tests.integration.test_discovery import Discovered
from tests.processes import ROOT, Served, free_port, wait_until
from tests.toy_mesh import get_json


@pytest.fixture(scope="module")
def mesh(toy_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Discovered]:
    """A head without any node, ready to be joined."""
    mesh = Discovered(tmp_path_factory.mktemp("joined"), toy_folder("llama"))
    mesh.head.start()
    wait_until(lambda: answers(mesh.head), 60)
    try:
        yield mesh
    finally:
        mesh.head.stop()


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(processes.SECRET + "\n")
    return path


def answers(served: Served) -> bool:
    try:
        return processes.call(f"{served.url}/livez", timeout=5)[0] == 200
    except OSError:
        return False


@pytest.fixture(autouse=True)
def own_var(settings: Any, tmp_path: Path) -> None:
    settings.MESHNET_VAR_DIR = tmp_path / "var"


def refusal(*arguments: str) -> str:
    """The one line with which the command ends; code 1 at the shell."""
    with pytest.raises(CommandError) as caught:
        call_command("node", *arguments)
    assert caught.value.returncode == 1
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_head_that_cannot_be_reached_is_named(secret_file: Path) -> None:
    port = free_port()
    line = refusal("--head", f"http://127.0.0.1:{port}", "--secret-file", str(secret_file), "--port", str(free_port()))
    assert line.startswith(f"No head can be reached: http://127.0.0.1:{port}")


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--head", "mesh.example.org", "is not http://host:port"),
        ("--head", "http://203.0.113.7:8000", "MESHNET_PLAIN_HTTP"),
        ("--head", ",", "Name the mesh's head"),
        ("--layers", "4:2", "--layers"),
        ("--port", "0", "is not a port"),
        ("--url", "node", "--url"),
        ("--memory", "much", "--memory"),
        ("--bind", "203.0.113.7", "203.0.113.7"),
    ],
)
def test_what_cannot_be_is_refused_before_anybody_is_asked(
    mesh: Discovered, secret_file: Path, option: str, value: str, says: str
) -> None:
    options = {"--head": mesh.head.url, "--secret-file": str(secret_file), "--port": str(free_port()), option: value}
    assert says in refusal(*(word for pair in options.items() for word in pair))


def test_the_secret_file_must_be_there_and_long_enough(mesh: Discovered, tmp_path: Path, settings: Any) -> None:
    path = tmp_path / "short"
    common = ("--head", mesh.head.url, "--port", str(free_port()), "--secret-file", str(path))
    assert "cannot be read: No such file" in refusal(*common)
    path.write_text("short")
    assert "shorter than 16" in refusal(*common)
    settings.MESHNET_SECRET = ""
    assert "--secret-file" in refusal("--head", mesh.head.url)


def test_e02_a_wrong_secret_is_told_from_a_silent_head(mesh: Discovered, tmp_path: Path) -> None:
    path = tmp_path / "wrong"
    path.write_text("a-secret-of-another-mesh")
    line = refusal("--head", mesh.head.url, "--secret-file", str(path), "--port", str(free_port()))
    assert line == f"{mesh.head.url} does not know this secret: it must be the mesh's own."


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--layers", "2:9"), "has layers 0:4; 2:9 is not among them"),
        (("--memory", "1MiB"), "this machine lacks 1023 MiB"),
        ((), "Copy it, meshnet_manifest.json included"),
        (("--url", "http://10.0.0.7:8001"), "setting of the head"),
    ],
)
def test_what_the_head_refuses_and_what_is_missing_here(
    mesh: Discovered, secret_file: Path, options: tuple[str, ...], says: str
) -> None:
    common = (
        "--head",
        mesh.head.url,
        "--secret-file",
        str(secret_file),
        "--port",
        str(free_port()),
        "--bind",
        "127.0.0.1",
    )
    assert says in refusal(*common, *options)


def test_another_model_is_refused_before_it_is_loaded(
    mesh: Discovered, secret_file: Path, toy_folder: Callable[[str], Path]
) -> None:
    common = ("--head", mesh.head.url, "--secret-file", str(secret_file), "--port", str(free_port()))
    line = refusal(*common, "--model", str(toy_folder("qwen2")))
    assert "is another model than the mesh serves" in line


@contextmanager
def joined(mesh: Discovered, secret: Path, memory: int, var: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    """The command as somebody types it, in a process group of its own as a terminal has it."""
    command = [
        sys.executable, "manage.py", "node", "--head", mesh.head.url, "--secret-file", str(secret),
        "--memory", str(memory), "--model", str(mesh.model), "--port", str(port),
    ]  # fmt: skip
    bare = {name: value for name, value in os.environ.items() if not name.startswith("MESHNET_")}
    environ = {**bare, "MESHNET_VAR_DIR": str(var), "MESHNET_THREADS": "1"}
    var.mkdir()
    with (var / "log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environ, stdout=log, stderr=log, text=True, start_new_session=True
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_two_machines_join_with_one_command_each(mesh: Discovered, secret_file: Path, tmp_path: Path) -> None:
    costs = read_costs(mesh.model, "float32", 0, allow_untested=False)
    half = costs.bytes(LayerRange(2, 4)) + RESERVE_BYTES
    assert half < costs.bytes(LayerRange(0, 3)) + RESERVE_BYTES
    ports = [free_port(), free_port()]
    with (
        joined(mesh, secret_file, half, tmp_path / "one", ports[0]) as one,
        joined(mesh, secret_file, half, tmp_path / "two", ports[1]) as two,
    ):
        mesh.head.wait_ready(120)
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        statuses = [get_json(f"{url}/status") for url in urls]
        assert sorted(status["layers"] for status in statuses) == ["0:2", "2:4"]
        assert sorted(mesh.look()["roster"]) == sorted(urls)
        assert mesh.text()
        limits = get_json(f"{urls[0]}/sessions")["limits"]
        assert limits["max_bytes"] < costs.bytes(LayerRange(0, 4)), "the caches got what the memory left"
        for process in (one, two):
            os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C: to all of the terminal's processes
        assert [process.wait(20) for process in (one, two)] == [0, 0]
        # Sooner than beats could be missed: the head may still be busy with the good-bye.
        wait_until(lambda: mesh.look()["roster"] == [], 10)
        assert all(row["left_at"] is not None for row in mesh.look()["rows"] if row["url"] in urls)
    for name in ("one", "two"):
        log = (tmp_path / name / "log").read_text()
        assert "asks for layers" in log
        assert "Traceback" not in log
        assert processes.SECRET not in log
