from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshsite.metrics_folder import PARENT, VARIABLE, MetricsFolder


@pytest.fixture(autouse=True)
def variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable as it was, whatever a test's folder makes of it."""
    monkeypatch.setenv(VARIABLE, "/of/some/other/program")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[MetricsFolder]:
    folder = MetricsFolder(tmp_path)
    yield folder
    folder.remove()


def folders(var_dir: Path) -> set[Path]:
    return {path for path in (var_dir / PARENT).iterdir() if path.is_dir()}


def test_a_master_gets_an_empty_folder_and_names_it_to_its_workers(folder: MetricsFolder) -> None:
    assert os.environ[VARIABLE] == str(folder.path)
    assert list(folder.path.glob("*.db")) == []


def test_two_masters_on_one_var_folder_do_not_mix(folder: MetricsFolder, tmp_path: Path) -> None:
    (folder.path / "counter_7.db").touch()
    other = MetricsFolder(tmp_path)
    assert folders(tmp_path) == {folder.path, other.path}
    assert (folder.path / "counter_7.db").exists()
    assert list(other.path.glob("*.db")) == []
    other.remove()
    assert folders(tmp_path) == {folder.path}


def test_what_a_killed_master_left_is_swept_by_the_next(tmp_path: Path) -> None:
    killed = MetricsFolder(tmp_path)
    (killed.path / "counter_7.db").touch()
    killed._lock.close()  # as the kernel does
    following = MetricsFolder(tmp_path)
    assert folders(tmp_path) == {following.path}
    following.remove()


def test_of_a_dead_worker_the_counts_stay_and_what_was_under_way_goes(folder: MetricsFolder) -> None:
    for name in ("counter_7.db", "histogram_7.db", "gauge_livesum_7.db", "gauge_livesum_8.db"):
        (folder.path / name).touch()
    folder.forget_worker(7)
    folder.forget_worker(7)
    assert {path.name for path in folder.path.glob("*.db")} == {
        "counter_7.db",
        "histogram_7.db",
        "gauge_livesum_8.db",
    }


def test_leaving_removes_it(folder: MetricsFolder, tmp_path: Path) -> None:
    folder.remove()
    assert folders(tmp_path) == set()
