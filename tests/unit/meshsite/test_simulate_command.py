"""`manage.py simulate`: what it prints, writes and refuses."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command


def run(settings: Any, folder: Path, *args: str) -> str:
    settings.MESHNET_VAR_DIR = folder
    out = StringIO()
    call_command("simulate", *args, stdout=out, stderr=StringIO())
    return out.getvalue()


def test_it_prints_tables_and_writes_the_same_numbers(settings: Any, tmp_path: Path) -> None:
    said = run(settings, tmp_path, "--quick", "--nodes", "10", "--seed", "3", "--only", "memory", "arithmetic")
    found = json.loads((tmp_path / "simulate" / "latest.json").read_text())
    assert (found["seed"], found["nodes"]) == (3, 10)
    assert f"loop_bytes_per_answer {found['memory'][0]['loop_bytes_per_answer']}" in " ".join(said.split())
    assert "Llama-3.1-405B" in said
    assert str(tmp_path / "simulate" / "latest.json") in said


@pytest.mark.parametrize("option", ["--nodes", "--slots", "--head-workers"])
def test_negative_numbers_are_refused(settings: Any, tmp_path: Path, option: str) -> None:
    with pytest.raises(CommandError, match="must not be negative"):
        run(settings, tmp_path, option, "-1")


def test_a_mesh_needs_a_node_for_each_stretch(settings: Any, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="--nodes must be 5 or more"):
        run(settings, tmp_path, "--nodes", "4")


def test_more_nodes_than_a_head_knows_are_refused_before_any_announces_itself(settings: Any, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="2000 nodes at most"):
        run(settings, tmp_path, "--nodes", "2001", "--only", "announcing")


def test_a_folder_that_cannot_be_made_is_named(settings: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CommandError, match="Set MESHNET_VAR_DIR"):
        run(settings, tmp_path / "file", "--only", "memory")


def test_what_its_workers_would_refuse_themselves_is_said(
    settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("meshsite.simulation.run.simulate", stop)
    settings.MESHNET_VAR_DIR = tmp_path
    said = {}
    for slots in ("4", "8"):
        err = StringIO()
        with pytest.raises(CommandError):
            call_command("simulate", "--slots", slots, "--only", "load", stdout=StringIO(), stderr=err)
        said[slots] = err.getvalue()
    assert "admit 960 answers at once, fewer than the 1600 slots" in said["8"]
    assert said["4"] == ""


def test_without_greenlet_it_says_how_to_get_it(settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins

    plain = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "meshsite.simulation.run":
            raise ModuleNotFoundError("No module named 'greenlet'", name="greenlet")
        return plain(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(CommandError, match="make setup"):
        run(settings, tmp_path, "--only", "memory")


def test_an_interrupted_run_writes_nothing(settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("meshsite.simulation.run.simulate", interrupt)
    with pytest.raises(CommandError) as caught:
        run(settings, tmp_path, "--only", "memory")
    assert caught.value.returncode == 130
    assert not (tmp_path / "simulate" / "latest.json").exists()
