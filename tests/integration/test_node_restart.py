"""A node is killed and comes back empty, or as another, under the same URL in the middle of an answer (case D07)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from generation.errors import NoRoute
from generation.head import TokenLoop
from nodes.client import HttpNodeClient
from tests import processes, toys
from tests.meshes import LocalMesh
from tests.processes import Served
from tests.toy_mesh import get_json
from tests.toys import reference_ids

PROMPT = torch.randint(1, 255, (15,), generator=torch.Generator().manual_seed(1)).tolist()
NEW = 20


@pytest.fixture(scope="module")
def expected(toy_reference: Any) -> list[int]:
    ids = reference_ids(toy_reference("llama"), PROMPT, NEW)
    assert len(ids) == NEW and len(set(ids)) > 10, "a text that repeats itself would hide a shifted step"
    return ids


@pytest.fixture(scope="module")
def stayer(toy_folder: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    node = processes.node(tmp_path_factory.mktemp("stayer"), toy_folder("llama"), "0:2")
    with processes.serving(node):
        yield node


@pytest.fixture
def victim(toy_folder: Any, tmp_path: Path) -> Iterator[Served]:
    node = processes.node(tmp_path / "victim", toy_folder("llama"), "2:4")
    with processes.serving(node):
        yield node


@contextmanager
def loop_over(folder: Path, nodes: list[Served], wait: Any, **settings: Any) -> Iterator[TokenLoop]:
    clients = [HttpNodeClient(node.url, processes.SECRET) for node in nodes]
    fingerprint = get_json(f"{nodes[0].url}/status")["fingerprint"]
    mesh = LocalMesh(folder, list(clients), fingerprint=fingerprint, **settings)
    try:
        yield mesh.loop(PROMPT, NEW, wait=wait)
    finally:
        for client in clients:
            client.close()


class Comeback:
    """The node that takes the victim's place: started while the loop waits for the route, and not before."""

    def __init__(self, node: Served) -> None:
        self.node = node
        self.waits = 0

    def wait(self, seconds: float) -> None:
        self.waits += 1
        if self.waits == 2:  # so that the loop has found the place empty once more
            self.node.start().wait_ready()


@pytest.fixture
def comeback(victim: Served) -> Iterator[Comeback]:
    node = Served(dict(victim.environ), victim.config, victim.folder / "again", port=victim.port)
    yield Comeback(node)
    node.stop()


@pytest.mark.parametrize("tokens", [1, 7, NEW - 1])
def test_d07_an_answer_waits_for_a_killed_node_and_goes_on_with_the_same_ids(
    toy_folder: Any, expected: list[int], stayer: Served, victim: Served, comeback: Comeback, tokens: int
) -> None:
    boot_id = get_json(f"{victim.url}/status")["boot_id"]
    with loop_over(toy_folder("llama"), [stayer, victim], comeback.wait) as loop:
        running = loop.tokens()
        ids = [next(running) for _ in range(tokens)]
        victim.kill()
        ids += list(running)
        assert ids == expected, "every token once, in order"
        assert loop.progress.completion_tokens == NEW
        assert (loop.progress.prefills, loop.progress.failovers) == (2, 1)
        assert loop.progress.cached
        status = get_json(f"{comeback.node.url}/status")
        assert status["boot_id"] != boot_id
        for node in (stayer, comeback.node):
            (row,) = get_json(f"{node.url}/sessions")["sessions"]
            assert (row["id"], row["past_len"]) == (loop.session_id, len(PROMPT) + NEW - 1)
        for client in loop._directory.clients:
            client.release(loop.session_id, timeout=5)


@pytest.mark.parametrize("tokens", [1, 7, NEW - 1])
def test_d07_a_node_that_is_back_before_it_is_missed_costs_one_prefill(
    toy_folder: Any, expected: list[int], stayer: Served, victim: Served, comeback: Comeback, tokens: int
) -> None:
    """Nobody notices that it was gone: the step finds an empty store, which is a miss and no failure."""
    with loop_over(toy_folder("llama"), [stayer, victim], comeback.wait) as loop:
        running = loop.tokens()
        ids = [next(running) for _ in range(tokens)]
        victim.kill()
        comeback.node.start().wait_ready()
        assert ids + list(running) == expected
        assert (loop.progress.prefills, loop.progress.cache_misses, loop.progress.failovers) == (2, 1, 0)
        assert get_json(f"{comeback.node.url}/sessions")["stats"]["misses"]["unknown_session"] == 1
        for client in loop._directory.clients:
            client.release(loop.session_id, timeout=5)


@pytest.fixture(scope="module")
def fine_tune(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toys.build_model("llama", tmp_path_factory.mktemp("finetune"), seed=1)


@pytest.mark.parametrize("change", ["layers", "model"])
def test_d07_a_node_that_comes_back_as_another_is_refused_after_the_wait(
    toy_folder: Any,
    expected: list[int],
    stayer: Served,
    victim: Served,
    comeback: Comeback,
    fine_tune: Path,
    clock: Any,
    change: str,
) -> None:
    if change == "model":
        comeback.node.environ["MESHNET_MODEL"] = str(fine_tune)
        named = "layers 2:4 of 4.*1 nodes were left out"
    else:
        comeback.node.environ["MESHNET_LAYERS"] = "3:4"
        named = "layers 2:3 of 4"

    def wait(seconds: float) -> None:
        clock.advance(seconds)
        comeback.wait(seconds)

    with loop_over(toy_folder("llama"), [stayer, victim], wait, route_wait=8.0) as loop:
        loop._clock = clock
        running = loop.tokens()
        ids = [next(running) for _ in range(7)]
        victim.kill()
        with pytest.raises(NoRoute, match=named):
            ids += list(running)
    assert comeback.waits > 2, "the other node was there to be asked"
    assert ids == expected[:7], "no token of the other node's"
    assert 8 <= clock.now - 1000 <= 11
    assert get_json(f"{comeback.node.url}/sessions")["stats"]["prefills"] == 0
    assert get_json(f"{stayer.url}/sessions")["sessions"] == [], "given back while it waited"
