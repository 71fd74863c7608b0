"""The kill matrix in short once more, with steps that the nodes hand over to each other, through each other's gates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.chat import ask
from tests.chaos.marks import ALL_CASES
from tests.chaos.matrix import FAULTS, NODE, PATIENCE, PROMPT, TOKENS, Cell, Matrix
from tests.chaos.mesh import ChaosMesh, Stage, running_chaos_mesh
from tests.chaos.model import Reference
from tests.processes import wait_until

#: Nodes that met a fault hand over again soon, so that every cell is about a step that was handed over.
SOON = "import generation.directory as d; d.LINK_SECONDS = d.LONGEST_LINK_SECONDS = 0.1"
#: Each fault in the middle of an answer, over the stages in turn; `make chaos` runs it at each.
CELLS = [
    Cell((turn + shift) % 3, "step 12", fault, bool(turn % 2))
    for shift in range(3 if ALL_CASES else 1)
    for turn, fault in enumerate(FAULTS)
]


def check_done(stage: Stage, row: dict[str, object]) -> None:
    """A fault behind the result, in an answer of the chain, needs no repair: no row has to show one."""
    assert stage.victim is not None, "the fault never happened"
    assert (row["status"], row["completion_tokens"]) == ("done", TOKENS)


@pytest.fixture(scope="module")
def handing(chaos_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChaosMesh]:
    head = {**PATIENCE, "MESHNET_HANDOVER": "on"}
    folder = tmp_path_factory.mktemp("handing")
    with running_chaos_mesh(chaos_model, folder, spares=True, node=NODE, head=head, head_preload=SOON) as mesh:
        yield mesh


@pytest.fixture(scope="module")
def handing_matrix(handing: ChaosMesh, reference: Reference) -> Matrix:
    return Matrix(handing, reference, repaired=check_done)


def results_asked_for(mesh: ChaosMesh) -> int:
    return sum(
        count for one in mesh.replicas for name, count in one.gate.requests.items() if name.startswith("GET /sessions/")
    )


def hands_over(mesh: ChaosMesh) -> bool:
    """Whether the next answer will be handed over, as this one is. A node that was started anew is news to the head."""
    before = results_asked_for(mesh)
    assert ask(mesh, PROMPT, 4).is_whole
    return results_asked_for(mesh) >= before + 3


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_generation_whose_steps_are_handed_over_outlives_a_node(
    handing: ChaosMesh, handing_matrix: Matrix, cell: Cell
) -> None:
    wait_until(lambda: hands_over(handing), 20, "the nodes of the cell before do not hand over again")
    before = results_asked_for(handing)
    handing_matrix.check(cell)
    assert results_asked_for(handing) >= before + 10, "the steps were relayed"
