"""Fixtures for every test: toy models on disk, built once a run, and processes that serve them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import transformers

from tests import toys
from tests.processes import free_port
from tests.real import RealMesh, running_mesh

transformers.logging.disable_progress_bar()


@pytest.fixture(scope="session")
def toy_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """toy_folder("llama") is the folder of a toy model of that family."""
    folders: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in folders:
            folders[family] = toys.build_model(family, tmp_path_factory.mktemp(family))
        return folders[family]

    return folder


@pytest.fixture(scope="session")
def toy_reference(toy_folder: Callable[[str], Path]) -> Callable[[str], Any]:
    """toy_reference("llama") is the same model whole, in this process."""
    models: dict[str, Any] = {}

    def reference(family: str) -> Any:
        if family not in models:
            models[family] = toys.reference_model(toy_folder(family))
        return models[family]

    return reference


@pytest.fixture(scope="session")
def real_mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealMesh]:
    """One head and two nodes of the real model, started once for the whole run by `manage.py mesh`."""
    with running_mesh(tmp_path_factory.mktemp("real") / "var", "--port", str(free_port())) as mesh:
        yield mesh


class Clock:
    """A monotonic clock that moves only when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()
