"""Nodes of another model, dtype or layer range, over HTTP: never silently used, and left in the middle of a text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from generation.errors import NoRoute
from nodes.client import HttpNodeClient
from nodes.errors import MeshnetError
from tests import processes, toys
from tests.meshes import LocalMesh
from tests.processes import Served
from tests.toy_mesh import get_json
from tests.toys import reference_ids

PROMPT = torch.randint(1, 255, (15,), generator=torch.Generator().manual_seed(1)).tolist()
NEW = 20


@pytest.fixture(scope="module")
def fine_tune(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another model of the very same shape."""
    return toys.build_model("llama", tmp_path_factory.mktemp("finetune"), seed=1)


@pytest.fixture(scope="module")
def expected(toy_reference: Any) -> list[int]:
    return reference_ids(toy_reference("llama"), PROMPT, NEW)


@pytest.fixture(scope="module")
def first(toy_folder: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    node = processes.node(tmp_path_factory.mktemp("first"), toy_folder("llama"), "0:2")
    with processes.serving(node):
        yield node


@contextmanager
def mesh_over(folder: Path, *nodes: Served) -> Iterator[LocalMesh]:
    """A head's loop over nodes, for the model that the first of them serves."""
    clients = [HttpNodeClient(node.url, processes.SECRET) for node in nodes]
    fingerprint = get_json(f"{nodes[0].url}/status")["fingerprint"]
    try:
        yield LocalMesh(folder, list(clients), fingerprint=fingerprint, busy_wait=20.0)
    finally:
        for client in clients:
            client.close()


def test_a12_nodes_of_two_dtypes_make_no_route(toy_folder: Any, first: Served, tmp_path: Path) -> None:
    tail = processes.node(tmp_path / "tail", toy_folder("llama"), "2:4", MESHNET_DTYPE="bfloat16")
    with processes.serving(tail), mesh_over(toy_folder("llama"), first, tail) as mesh:
        assert get_json(f"{tail.url}/status")["dtype"] == "bfloat16"
        with pytest.raises(NoRoute, match=r"layers 2:4 of 4.*1 nodes were left out.*in float32"):
            list(mesh.loop(PROMPT, NEW).tokens())
        assert get_json(f"{first.url}/sessions")["stats"]["prefills"] == 0, "nothing was asked of the other node"


def test_a_fine_tune_of_the_same_shape_is_no_part_of_a_route(
    toy_folder: Any, fine_tune: Path, first: Served, tmp_path: Path
) -> None:
    tail = processes.node(tmp_path / "tail", fine_tune, "2:4")
    with processes.serving(tail), mesh_over(toy_folder("llama"), first, tail) as mesh:
        assert get_json(f"{tail.url}/status")["hidden_size"] == get_json(f"{first.url}/status")["hidden_size"]
        with pytest.raises(NoRoute, match=rf"1 nodes were left out: not {mesh.settings.fingerprint}"):
            list(mesh.loop(PROMPT, NEW).tokens())


@pytest.mark.parametrize("change", ["layers", "model"])
def test_d07_a_node_that_becomes_another_under_its_url_is_left_in_the_middle_of_a_text(
    toy_folder: Any, fine_tune: Path, expected: list[int], tmp_path: Path, change: str
) -> None:
    """Between two tokens the first node is replaced: the next step gets 421, and a new plan finds the spare node."""
    folder = toy_folder("llama")
    before = processes.node(tmp_path / "before", folder, "0:2")
    tail = processes.node(tmp_path / "tail", folder, "2:4")
    # Not there when the first plan is made, so that the text begins on the node that will change.
    spare = processes.node(tmp_path / "spare", folder, "0:2" if change == "model" else "1:2")
    after = processes.node(tmp_path / "after", *((fine_tune, "0:2") if change == "model" else (folder, "0:1")))
    after.port = before.port
    with processes.serving(before, tail), mesh_over(folder, before, tail, spare) as mesh:
        loop = mesh.loop(PROMPT, NEW)
        tokens = loop.tokens()
        ids = [next(tokens) for _ in range(7)]
        assert loop.progress.route is not None
        assert [hop.url for hop in loop.progress.route.hops] == [before.url, tail.url]
        before.kill()
        with processes.serving(after, spare):
            faults: list[str] = []
            note = loop._fail_over

            def noted(error: MeshnetError) -> None:
                faults.append(error.code)
                note(error)

            loop._fail_over = noted  # type: ignore[method-assign]
            ids += list(tokens)
        hops = [hop.url for hop in loop.progress.route.hops] if loop.progress.route else []
    assert ids == expected
    assert faults == [f"wrong_{change}"]
    assert (loop.progress.failovers, loop.progress.prefills) == (1, 2)
    assert hops == ([spare.url, tail.url] if change == "model" else [after.url, spare.url, tail.url])
