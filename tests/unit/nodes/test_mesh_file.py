from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from nodes.mesh_file import FILE_NAME, MeshFile

MESH = MeshFile(
    head="http://127.0.0.1:8000",
    nodes=("http://127.0.0.1:8001", "http://127.0.0.1:8002"),
    api_key="key",
    mesh_secret="secret",
    admin_user="mesh-admin",
    admin_password="password",
    heads=("http://127.0.0.1:8000", "http://127.0.0.1:8009"),
)


def test_its_secrets_stand_in_no_traceback() -> None:
    assert "http://127.0.0.1:8000" in repr(MESH)
    assert not any(secret in repr(MESH) for secret in ("'key'", "'secret'", "'password'"))


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    MESH.write(tmp_path)
    assert MeshFile.read(tmp_path) == MESH


def test_a_file_that_names_one_head_has_one(tmp_path: Path) -> None:
    path = MESH.write(tmp_path)
    content = json.loads(path.read_text())
    del content["heads"]
    path.write_text(json.dumps(content))
    mesh = MeshFile.read(tmp_path)
    assert mesh is not None
    assert mesh.heads == ("http://127.0.0.1:8000",)


def test_it_is_its_owners_alone_whatever_was_there_before(tmp_path: Path) -> None:
    for name in (FILE_NAME, "mesh.partial"):
        (tmp_path / name).write_text("old")
        (tmp_path / name).chmod(0o666)
    path = MESH.write(tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.iterdir()] == [FILE_NAME]


def test_where_no_mesh_runs_there_is_none(tmp_path: Path) -> None:
    assert MeshFile.read(tmp_path) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"head": "x"}', '{"head": "x", "nodes": [], "admin": 1}'])
def test_a_file_that_does_not_describe_a_mesh_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(ValueError, match=FILE_NAME):
        MeshFile.read(tmp_path)
