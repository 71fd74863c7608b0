"""Fixtures for every test: toy models on disk, built once a run, and processes that serve them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from django.conf import settings

from tests import redis_server as redis_server_module
from tests import toys
from tests.architecture_table import TABLE, ArchitectureTable
from tests.parallel import pytest_collection_modifyitems, pytest_sessionfinish, pytest_testnodedown  # noqa: F401
from tests.postgres import REQUIRED, Cluster, find_binaries, running_cluster
from tests.processes import free_port
from tests.real import RealMesh, running_mesh
from tests.toy_mesh import ToyMesh, running_toy_mesh

transformers.logging.disable_progress_bar()
# Toys are too small for two threads, which only wait for each other: fifty times slower when other work has a core.
torch.set_num_threads(1)


def pytest_report_header() -> str:
    return f"database: {settings.DATABASES['default']['ENGINE'].rpartition('.')[2]}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Prints the table of architectures, if the run measured any."""
    table = config.stash.get(TABLE, None)
    if table is not None and table.cells:
        terminalreporter.section("architectures")
        terminalreporter.write("\n".join(table.lines(toys.BAR)) + "\n")


@pytest.fixture(scope="session")
def architecture_table(pytestconfig: pytest.Config) -> ArchitectureTable:
    """What tests of architectures record, and the end of the run shows."""
    return pytestconfig.stash.setdefault(TABLE, ArchitectureTable())


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


@pytest.fixture(scope="session")
def toy_mesh(toy_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToyMesh]:
    """One head and two nodes of a toy model, started once for the whole run."""
    with running_toy_mesh(toy_folder("llama"), tmp_path_factory.mktemp("mesh")) as mesh:
        yield mesh


@pytest.fixture(scope="session")
def postgres() -> Iterator[Cluster]:
    """A PostgreSQL cluster of the run's own."""
    binaries = find_binaries()
    if binaries is None:
        advice = (
            "PostgreSQL's server is missing. `make test` installs it where it may (Debian, as root); elsewhere: "
            "apt-get install postgresql."
        )
        if os.environ.get(REQUIRED) in ("1", "all"):
            pytest.fail(advice)
        pytest.skip(f"{advice} {REQUIRED}=1 makes this a failure.")
    with running_cluster(binaries) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[redis_server_module.Server]:
    """A Redis of the run's own."""
    redis_server_module.need("redis-server", "redis-server")
    with redis_server_module.running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


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
