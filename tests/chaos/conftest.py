"""One mesh to break for all tests of this folder; each test leaves it whole."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos import model
from tests.chaos.matrix import NODE, PATIENCE, Matrix
from tests.chaos.mesh import ChaosMesh, running_chaos_mesh

#: How long the mesh's head waits for layers that are gone, in seconds.
ROUTE_WAIT = 3


@pytest.fixture(scope="session")
def chaos_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model.build(tmp_path_factory.mktemp("chaos") / "model")


@pytest.fixture(scope="session")
def reference(chaos_model: Path) -> model.Reference:
    return model.Reference(chaos_model)


@pytest.fixture(scope="package")
def unhealed(chaos_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChaosMesh]:
    head = {**PATIENCE, "MESHNET_ROUTE_WAIT_SECONDS": str(ROUTE_WAIT)}
    with running_chaos_mesh(chaos_model, tmp_path_factory.mktemp("chaos"), spares=True, node=NODE, head=head) as mesh:
        yield mesh


@pytest.fixture
def mesh(unhealed: ChaosMesh) -> Iterator[ChaosMesh]:
    """Six nodes in three stages behind gates, a spare for each stage, and a head."""
    yield unhealed
    unhealed.heal()


@pytest.fixture(scope="package")
def matrix(unhealed: ChaosMesh, reference: model.Reference) -> Matrix:
    return Matrix(unhealed, reference)
