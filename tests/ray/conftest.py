"""Three machines and a mesh of the default model on them, for all tests of this folder; each leaves it whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import ROOT
from tests.ray.machines import RayMachines, ray_machines
from tests.ray.mesh import RayMesh, running_mesh


@pytest.fixture(scope="session")
def machines() -> Iterator[RayMachines]:
    with ray_machines(3) as started:
        yield started


@pytest.fixture(scope="module")
def mesh(machines: RayMachines, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayMesh]:
    """One replica of the default model in two stages."""
    var_dir = tmp_path_factory.mktemp("ray") / "var"
    var_dir.mkdir()
    (var_dir / "models").symlink_to(ROOT / "var" / "models")
    with running_mesh(var_dir, "--address", machines.address, "--shards", "2", environ=machines.environ) as started:
        yield started


@pytest.fixture
def whole_machines(machines: RayMachines) -> Iterator[RayMachines]:
    """Three machines that a test may kill; those that it killed are there again after it."""
    names = list(machines.raylets)
    yield machines
    for name in names:
        if name not in machines.raylets:
            machines.start(name)


@pytest.fixture
def var_dir(tmp_path: Path) -> Path:
    return tmp_path / "var"
