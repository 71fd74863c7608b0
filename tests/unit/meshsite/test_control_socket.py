from __future__ import annotations

import json
import os
import socket
import stat
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from meshsite import control_socket
from meshsite.control_socket import MOST_BYTES, NAME, ControlRefused, ControlSocket, NoAnswer, ask


def answer(request: Mapping[str, Any]) -> Mapping[str, Any]:
    if request.get("do") == "refuse":
        raise ControlRefused("Not today.")
    if request.get("do") == "break":
        raise RuntimeError("out of order")
    return {"heard": dict(request), "thread": threading.current_thread().name}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with ControlSocket(tmp_path, answer):
        yield tmp_path


def say(folder: Path, data: bytes, *, end: bool = False) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        with control_socket._short(folder / NAME) as path:
            connection.connect(path)
        connection.sendall(data)
        if end:
            connection.shutdown(socket.SHUT_WR)
        reply: dict[str, Any] = json.loads(connection.makefile().readline())
        return reply


def test_a_request_is_answered_by_a_thread_of_its_own(folder: Path) -> None:
    assert ask(folder, {"do": "status"}) == {"heard": {"do": "status"}, "thread": "meshnet-control"}


def test_what_the_mesh_refuses_is_said_in_its_own_words(folder: Path) -> None:
    with pytest.raises(ControlRefused, match=r"^Not today\.$"):
        ask(folder, {"do": "refuse"})


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"\n", "not a line of JSON"),
        (b"{\n", "not a line of JSON"),
        (b"\xff\xfe\n", "not a line of JSON"),
        (b"[" * 2000 + b"\n", "not a line of JSON"),
        (b"[1]\n", "not an object"),
        (b"null\n", "not an object"),
        (b'{"do": "break"}\n', "could not answer: RuntimeError: out of order"),
        (b"x" * (MOST_BYTES + 1), f"longer than {MOST_BYTES} bytes"),
    ],
)
def test_bad_input_gets_a_clear_answer_and_the_next_request_its_own(folder: Path, data: bytes, complaint: str) -> None:
    assert complaint in say(folder, data)["error"]
    assert ask(folder, {"do": "status"})["heard"] == {"do": "status"}


def test_a_line_without_its_end_counts_once_the_client_has_ended_it(folder: Path) -> None:
    assert say(folder, b'{"do": "x"}', end=True)["heard"] == {"do": "x"}


def test_a_client_that_is_silent_or_gone_holds_nobody_up_for_long(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_socket, "ANSWER_SECONDS", 0.1)
    with socket.socket(socket.AF_UNIX) as silent, socket.socket(socket.AF_UNIX) as gone:
        silent.connect(str(folder / NAME))
        gone.connect(str(folder / NAME))
        gone.close()
        assert ask(folder, {"do": "status"})["heard"] == {"do": "status"}
        silent.settimeout(10)
        assert "No line came within 0 s" in silent.recv(4096).decode()


def test_the_socket_is_its_owners_alone_and_gone_afterwards(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("of a mesh that was killed")
    with ControlSocket(tmp_path, answer):
        mode = (tmp_path / NAME).stat().st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o600
    assert not (tmp_path / NAME).exists()


def test_a_socket_that_cannot_be_made_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ControlRefused, match=r"nowhere/mesh\.sock cannot be made: .*No such file or directory"):
        ControlSocket(tmp_path / "nowhere", answer).__enter__()


def test_another_users_process_is_turned_away(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = os.geteuid()
    monkeypatch.setattr(control_socket.struct, "unpack", lambda *_: (1, mine + 1, 1))
    with pytest.raises(ControlRefused, match="belongs to another user"):
        ask(folder, {"do": "status"})


def test_a_var_folder_with_a_long_path_does_too(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    with ControlSocket(folder, answer):
        assert ask(folder, {"do": "status"})["heard"] == {"do": "status"}


def test_where_no_mesh_runs_it_is_said_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NoAnswer, match=r"No mesh is running on .*: start one with `manage.py mesh`"):
        ask(tmp_path, {"do": "status"})
    with socket.socket(socket.AF_UNIX) as abandoned:  # its mesh was killed
        abandoned.bind(str(tmp_path / NAME))
    with pytest.raises(NoAnswer, match="No mesh is running"):
        ask(tmp_path, {"do": "status"})


def test_a_mesh_that_does_not_answer_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_socket, "ASK_SECONDS", 0.1)
    with socket.socket(socket.AF_UNIX) as stuck:
        stuck.bind(str(tmp_path / NAME))
        stuck.listen()
        with pytest.raises(NoAnswer, match="does not answer"):
            ask(tmp_path, {"do": "status"})
