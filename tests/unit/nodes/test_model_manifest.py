from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from nodes import model_manifest
from nodes.errors import ModelUnavailable
from nodes.model_manifest import MANIFEST, folder_fingerprint

PARTS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model in two weight files."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("[]")
    (folder / "README.md").write_text("about")
    index = {"weight_map": {"a": PARTS[0], "b": PARTS[1]}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for part in PARTS:
        (folder / part).write_bytes(part.encode())
    return folder


def copy(model: Path, *names: str) -> Path:
    """Another machine's folder with only these files of the model."""
    folder = model.with_name("copy")
    folder.mkdir()
    for name in names:
        shutil.copy(model / name, folder / name)
    return folder


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were read as a whole."""
    names: list[str] = []
    original = model_manifest._entry

    def entry(path: Path) -> dict[str, Any]:
        names.append(path.name)
        return original(path)

    monkeypatch.setattr(model_manifest, "_entry", entry)
    return names


def settle(model: Path) -> None:
    """Makes the manifest younger than every file, as it is once the clock of the file system has moved on."""
    files = max(path.stat().st_ctime_ns for path in model.iterdir() if path.name != MANIFEST)
    while (model / MANIFEST).stat().st_ctime_ns <= files:
        os.utime(model / MANIFEST)


def test_the_manifest_lists_what_shapes_the_text_and_nothing_else(model: Path) -> None:
    folder_fingerprint(model)
    entries = json.loads((model / MANIFEST).read_text())["files"]
    assert [entry["name"] for entry in entries] == [
        "config.json", *PARTS, "model.safetensors.index.json", "tokenizer.json"
    ]  # fmt: skip
    assert set(entries[0]) == {"name", "size", "sha256"}


def test_the_second_time_nothing_is_read_again(model: Path, hashed: list[str]) -> None:
    first = folder_fingerprint(model)
    settle(model)
    hashed.clear()
    assert folder_fingerprint(model) == first
    assert hashed == []


def test_a_whole_copy_without_the_manifest_has_the_same_fingerprint(model: Path) -> None:
    first = folder_fingerprint(model)
    other = shutil.copytree(model, model.with_name("copy"))
    (other / MANIFEST).unlink()
    assert folder_fingerprint(other) == first


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", PARTS[1]])
def test_a_change_of_any_file_makes_another_fingerprint(model: Path, name: str) -> None:
    first = folder_fingerprint(model)
    (model / name).write_bytes((model / name).read_bytes() + b" ")
    assert folder_fingerprint(model) != first


def test_a_fine_tune_saved_over_the_old_weights_in_the_same_size_is_noticed(model: Path) -> None:
    first = folder_fingerprint(model)
    settle(model)
    weights = model / PARTS[0]
    weights.write_bytes(weights.read_bytes()[::-1])
    os.utime(weights, (0, 0))  # even when its modification time is set back
    second = folder_fingerprint(model)
    assert second != first
    assert folder_fingerprint(model) == second


def test_another_readme_is_the_same_model(model: Path) -> None:
    first = folder_fingerprint(model)
    (model / "README.md").write_text("about something else")
    assert folder_fingerprint(model) == first


def test_a_part_of_the_model_takes_the_fingerprint_from_the_manifest(model: Path, hashed: list[str]) -> None:
    whole = folder_fingerprint(model)
    part = copy(model, MANIFEST, "config.json", "model.safetensors.index.json", PARTS[1])
    hashed.clear()
    assert folder_fingerprint(part) == whole
    assert PARTS[1] in hashed  # it came after the manifest, so it was checked …
    settle(part)
    hashed.clear()
    assert folder_fingerprint(part) == whole
    assert hashed == []  # … once


def test_a_part_without_a_manifest_is_refused_with_the_way_out(model: Path) -> None:
    part = copy(model, "config.json", "model.safetensors.index.json", PARTS[1])
    with pytest.raises(ModelUnavailable, match=f"lacks {PARTS[0]} and has no {MANIFEST}"):
        folder_fingerprint(part)
    assert not (part / MANIFEST).exists()


def test_a_part_of_another_model_is_refused(model: Path) -> None:
    folder_fingerprint(model)
    part = copy(model, MANIFEST, "config.json", PARTS[1])
    (part / PARTS[1]).write_bytes(b"x" * (model / PARTS[1]).stat().st_size)
    with pytest.raises(ModelUnavailable, match=f"{PARTS[1]} has other content"):
        folder_fingerprint(part)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"files": []}', '{"files": [{"name": "x"}]}'])
def test_a_damaged_manifest_is_made_anew(model: Path, text: str) -> None:
    first = folder_fingerprint(model)
    (model / MANIFEST).write_text(text)
    assert folder_fingerprint(model) == first
    assert json.loads((model / MANIFEST).read_text())["files"]


def test_a_folder_that_cannot_be_written_to_has_the_same_fingerprint(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, *args: Any, **kwargs: Any) -> int:
        raise PermissionError("read-only file system")

    monkeypatch.setattr(Path, "write_text", refuse)  # the rights of a folder do not hold for root
    first = folder_fingerprint(model)
    assert not (model / MANIFEST).exists()
    monkeypatch.undo()
    assert folder_fingerprint(model) == first


def test_nothing_half_written_is_left_beside_the_manifest(model: Path) -> None:
    before = {path.name for path in model.iterdir()}
    folder_fingerprint(model)
    assert {path.name for path in model.iterdir()} == before | {MANIFEST}
