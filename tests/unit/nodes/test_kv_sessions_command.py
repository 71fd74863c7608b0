from __future__ import annotations

import json
import signal
from collections.abc import Callable
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from nodes.mesh_file import MeshFile
from nodes.watch import watch
from tests.unit.nodes.fake_node import SECRET, FakeNode, session_id
from tests.unit.nodes.manage import manage, started

Mesh = Callable[..., None]
A, B = session_id("a"), session_id("b")


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("kv_sessions", *arguments, stdout=out)
    return out.getvalue()


def lines_of(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_it_lists_every_session_on_every_node_in_aligned_columns(front: FakeNode, back: FakeNode, mesh: Mesh) -> None:
    mesh(front, back)
    front.hold(A, past_len=2048, age=75, idle=3)
    front.hold(B, past_len=7, busy=True)
    back.hold(A, past_len=2048, age=75, idle=3)
    text = run()
    nodes, sessions = (part.splitlines() for part in text.strip().split("\n\n"))
    assert nodes[0].split() == ["NODE", "STATE", "LAYERS", "SESSIONS", "BYTES", "TTL"]
    assert nodes[1].split()[:4] == [front.url, "ready", "0:15", "2/8"]
    assert nodes[1].endswith("2.0 MiB of 2.0 GiB  10 m")
    assert [line.split()[0] for line in sessions] == ["SESSION", A, A, B]
    assert sessions[1].split()[1:] == [
        front.url, "0:15", "2048", "2.0", "MiB", "1", "m", "15", "s",
        "3.0", "s", "9", "m", "57", "s", "2038", "no",
    ]  # fmt: skip
    assert sessions[3].endswith("yes")
    # Numbers end under the end of their headings.
    for line in sessions[1:]:
        assert line[: sessions[0].index("TOKENS") + len("TOKENS")].split()[-1] in ("2048", "7")


def test_it_says_so_when_there_is_no_session(front: FakeNode, mesh: Mesh) -> None:
    mesh(front)
    assert "No live sessions." in run()


def test_it_prints_json(front: FakeNode, back: FakeNode, mesh: Mesh) -> None:
    mesh(front, back)
    front.hold(A, past_len=33)
    one, two = json.loads(run("--json"))["nodes"]
    assert one["url"] == front.url
    assert (one["state"], one["error"]) == ("ready", None)
    assert one["limits"] == {"ttl_seconds": 600.0, "max_sessions": 8, "max_bytes": 2 * 1024**3}
    assert one["stats"]["sessions"] == 1
    assert one["sessions"] == [front.sessions[A]]
    assert two["sessions"] == []


def test_it_can_ask_one_node_alone(front: FakeNode, back: FakeNode, mesh: Mesh) -> None:
    mesh(front, back)
    assert [node["url"] for node in json.loads(run("--json", "--node", back.url))["nodes"]] == [back.url]
    assert front.requests == []


def test_it_refuses_a_node_that_is_not_of_the_mesh(front: FakeNode, mesh: Mesh) -> None:
    mesh(front)
    with pytest.raises(CommandError, match="http://stranger:1 is not a node of this mesh"):
        run("--node", "http://stranger:1")


def test_it_shows_what_answered_and_fails_for_a_dead_node(front: FakeNode, dead: str, mesh: Mesh) -> None:
    mesh(dead, front)
    front.hold(A)
    out = StringIO()
    with pytest.raises(CommandError, match=f"{dead} cannot be reached") as caught:
        call_command("kv_sessions", "--json", stdout=out)
    assert caught.value.returncode == 1
    gone, well = json.loads(out.getvalue())["nodes"]
    assert (gone["state"], gone["sessions"]) == ("unreachable", [])
    assert dead in gone["error"]
    assert [entry["id"] for entry in well["sessions"]] == [A]


def test_it_fails_with_advice_when_there_is_no_mesh(settings: Any, tmp_path: Path) -> None:
    settings.MESHNET_NODES = []
    settings.MESHNET_VAR_DIR = tmp_path
    with pytest.raises(CommandError, match=r"manage\.py mesh"):
        run()


def test_what_a_node_says_cannot_drive_the_terminal(front: FakeNode, mesh: Mesh) -> None:
    mesh(front)
    front.hold("\x1b[2J" + A)
    assert "?[2J" + A in run()


def test_f04_it_sees_the_running_nodes_from_another_process(front: FakeNode, tmp_path: Path) -> None:
    """The mesh is found through its file, as in a shell beside `manage.py mesh`."""
    front.hold(A)
    MeshFile(
        head="http://127.0.0.1:1",
        nodes=(front.url,),
        api_key="k",
        mesh_secret=SECRET,
        admin_user="u",
        admin_password="p",
    ).write(tmp_path)
    done = manage("kv_sessions", var_dir=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert A in done.stdout


def test_f04_a_node_that_is_down_is_an_exit_code_and_a_message(dead: str, tmp_path: Path) -> None:
    done = manage("kv_sessions", var_dir=tmp_path, nodes=(dead,))
    assert done.returncode == 1
    assert f"{dead} cannot be reached" in done.stderr
    assert "Traceback" not in done.stderr
    assert SECRET not in done.stdout + done.stderr


def test_its_exit_codes_are_in_its_help_and_wrong_usage_is_2(tmp_path: Path) -> None:
    wrong = manage("kv_sessions", "--nonsense", var_dir=tmp_path)
    assert wrong.returncode == 2
    text = " ".join(manage("kv_sessions", "--help", var_dir=tmp_path).stdout.split())
    assert "Exit codes: 0 every node answered, or with --watch it was ended by Ctrl-C; 1 a node" in text


@pytest.mark.parametrize("command", ["kv_sessions", "kv_evict", "kv_stats", "mesh_status"])
def test_it_does_not_import_torch_nor_open_the_database(command: str, front: FakeNode, tmp_path: Path) -> None:
    front.layers = "0:30"  # all of them: mesh_status is content
    arguments = ["--all"] if command == "kv_evict" else []
    code = (
        "import sys; from django.core.management import execute_from_command_line as run\n"
        "import os; os.environ.setdefault('DJANGO_SETTINGS_MODULE', 'meshsite.settings')\n"
        f"run(['manage.py', '{command}', *{arguments!r}])\n"
        "print('heavy:', sorted({'torch', 'transformers', 'safetensors', 'numpy'} & set(sys.modules)))"
    )
    done = manage(var_dir=tmp_path, nodes=(front,), code=code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "heavy: []"
    assert list(tmp_path.iterdir()) == []


# -- --watch


def test_watching_shows_new_sessions_until_ctrl_c(front: FakeNode, mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    mesh(front)
    front.hold(A)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            raise KeyboardInterrupt
        front.hold(B)

    monkeypatch.setattr("nodes.management.commands.kv_sessions.watch", partial(watch, wait=wait))
    text = run("--watch", "5")
    assert waits == [5.0, 5.0]
    assert [text.count(A), text.count(B)] == [2, 1]


def test_a_node_that_dies_meanwhile_is_a_line_and_no_end(
    front: FakeNode, dead: str, mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh(front, dead)
    front.hold(A)

    def wait(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("nodes.management.commands.kv_sessions.watch", partial(watch, wait=wait))
    text = run("--watch")
    assert A in text and f"{dead} cannot be reached" in text


def test_ctrl_c_ends_watching_with_code_0(front: FakeNode, tmp_path: Path) -> None:
    front.hold(A)
    with started("kv_sessions", "--watch", "0.2", var_dir=tmp_path, nodes=(front,)) as process:
        assert process.stdout is not None
        seen = ""
        while seen.count(A) < 2:
            line = process.stdout.readline()
            assert line, process.stderr.read() if process.stderr else ""
            seen += line
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert (process.returncode, errors) == (0, "")


@pytest.mark.parametrize("arguments", [["--watch", "0.01"], ["--watch", "often"], ["--watch", "1", "--json"]])
def test_watching_too_often_or_in_json_is_wrong_usage(arguments: list[str], tmp_path: Path) -> None:
    done = manage("kv_sessions", *arguments, var_dir=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
