"""Every miss that a node can answer is repaired: real misses of real stores, at every node and in every phase.

Nothing here raises an error in a node's place. A node is brought into the state that makes it miss, and the loop must
find the undisturbed ids again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from generation.errors import GaveUp
from generation.head import MAX_MISSES
from nodes.client import LocalNodeClient, StepAnswer
from nodes.errors import KVCacheMiss
from nodes.framing import Payload
from nodes.kv_statistics import MISS_REASONS
from nodes.runtime import NodeRuntime
from nodes.wire import StepHeaders
from tests.meshes import LocalMesh, ranges, running_nodes
from tests.toys import reference_ids

FAMILY = "qwen3"
CUTS = (0, 2, 4, 6)
PROMPT = torch.randint(1, 255, (21,), generator=torch.Generator().manual_seed(4)).tolist()
NEW = 16
PIECE = 8
#: Steps of one node, from 1: the prompt's pieces are 1 to 3 (a prefill and two decodes), then one for each new token.
STEPS = {"second piece": 2, "first token": 4, "middle token": 11, "last token": 3 + NEW - 1}

Spoil = Callable[["Disturbed", StepHeaders], None]


class Disturbed(LocalNodeClient):
    """A node that something happens to right before its n-th step, or before each decode."""

    def __init__(self, runtime: NodeRuntime, twin: NodeRuntime, url: str) -> None:
        super().__init__(runtime, url)
        self.twin = twin
        self.before: dict[int, Spoil] = {}
        self.before_each_decode: Spoil | None = None
        self.seen: list[StepHeaders] = []

    def forward(
        self, headers: StepHeaders, payload: Payload, *, timeout: float, patience: float | None = None
    ) -> StepAnswer:
        self.seen.append(headers)
        spoil = self.before.pop(len(self.seen), None)
        if spoil is None and headers.cache == "decode":
            spoil = self.before_each_decode
        if spoil is not None:
            spoil(self, headers)
        return super().forward(headers, payload, timeout=timeout)

    def behind_the_back(self, headers: StepHeaders, tokens: int) -> None:
        """A step under the generation's id that its head knows nothing of."""
        self._runtime.forward(headers, Payload(torch.randn(1, tokens, 64)))

    def misses(self) -> dict[str, int]:
        """Of the node and of its twin, by reason."""
        counts = [node.sessions()["stats"]["misses"] for node in {self._runtime, self.twin}]
        return {reason: sum(count[reason] for count in counts) for reason in MISS_REASONS}


def lose_the_session(client: Disturbed, headers: StepHeaders) -> None:
    client._runtime.evict(everything=True)


def be_a_token_ahead(client: Disturbed, headers: StepHeaders) -> None:
    client.behind_the_back(headers, 1)


def prefill_layers(first: int, last: int) -> Spoil:
    """The session is there, of the right length, but made for other layers of the node (given from its first)."""

    def spoil(client: Disturbed, headers: StepHeaders) -> None:
        assert headers.start_layer is not None and headers.past_len is not None
        start = headers.start_layer
        wrong = StepHeaders(headers.session, "prefill", start_layer=start + first, end_layer=start + last)
        client.behind_the_back(wrong, headers.past_len)

    return spoil


def restart_without_caching(client: Disturbed, headers: StepHeaders) -> None:
    client._runtime = client.twin


MISSES: dict[str, Spoil] = {
    "unknown_session": lose_the_session,
    "past_len_mismatch": be_a_token_ahead,
    "start_layer_mismatch": prefill_layers(1, 2),
    "layer_range_mismatch": prefill_layers(0, 1),
}


@pytest.fixture(scope="module")
def expected(toy_reference: Any) -> list[int]:
    ids = reference_ids(toy_reference(FAMILY), PROMPT, NEW)
    assert len(ids) == NEW and len(set(ids)) > 8, "a text that repeats itself would hide a shifted step"
    return ids


@pytest.fixture(scope="module")
def nodes(toy_folder: Any) -> Iterator[list[NodeRuntime]]:
    with running_nodes(toy_folder(FAMILY), ranges(*CUTS)) as running:
        yield running


@pytest.fixture(scope="module")
def uncaching(toy_folder: Any) -> Iterator[list[NodeRuntime]]:
    with running_nodes(toy_folder(FAMILY), ranges(*CUTS), kv_enabled=False) as running:
        yield running


class Mesh:
    def __init__(self, folder: Any, nodes: list[NodeRuntime], twins: list[NodeRuntime], **settings: Any) -> None:
        self.clients = [
            Disturbed(node, twin, f"local:{index}") for index, (node, twin) in enumerate(zip(nodes, twins, strict=True))
        ]
        self.mesh = LocalMesh(folder, list(self.clients), **settings)

    def run(self) -> tuple[list[int], Any]:
        loop = self.mesh.loop(PROMPT, NEW)
        return list(loop.tokens()), loop.progress

    def prefills(self) -> list[int]:
        """How often each node was sent the beginning of the text."""
        return [sum(headers.cache == "prefill" for headers in client.seen) for client in self.clients]

    def held(self) -> list[list[int]]:
        return [[row["past_len"] for row in client._runtime.sessions()["sessions"]] for client in self.clients]


@pytest.fixture
def mesh(toy_folder: Any, nodes: list[NodeRuntime], uncaching: list[NodeRuntime]) -> Mesh:
    for node in nodes:
        node.evict(everything=True)
    return Mesh(toy_folder(FAMILY), nodes, uncaching, piece_tokens=PIECE)


@pytest.mark.parametrize("node", [0, 1, 2])
@pytest.mark.parametrize("step", list(STEPS))
@pytest.mark.parametrize("reason", list(MISSES))
def test_a_miss_at_any_node_and_step_is_repaired_by_one_prefill_of_the_whole_chain(
    mesh: Mesh, expected: list[int], node: int, step: str, reason: str
) -> None:
    before = mesh.clients[node].misses()
    mesh.clients[node].before[STEPS[step]] = MISSES[reason]
    ids, progress = mesh.run()
    assert ids == expected
    after = mesh.clients[node].misses()
    assert {name: after[name] - before[name] for name in after if after[name] != before[name]} == {reason: 1}
    assert (progress.prefills, progress.cache_misses, progress.failovers) == (2, 1, 0)
    assert progress.cached
    # Behind a piece that missed, the one before it may have been on its way still.
    on_the_way = {1, 2} if step == "second piece" else {2}
    assert all(count == 2 if index <= node else count in on_the_way for index, count in enumerate(mesh.prefills()))
    assert mesh.held() == [[len(PROMPT) + NEW - 1]] * 3
    assert len({headers.session for client in mesh.clients for headers in client.seen}) == 1


@pytest.mark.parametrize("node", [0, 1, 2])
@pytest.mark.parametrize("step", list(STEPS))
def test_a_node_that_stops_caching_in_mid_generation_makes_the_rest_stateless(
    mesh: Mesh, expected: list[int], node: int, step: str
) -> None:
    before = mesh.clients[node].misses()["caching_disabled"]
    mesh.clients[node].before[STEPS[step]] = restart_without_caching
    ids, progress = mesh.run()
    assert ids == expected
    assert mesh.clients[node].misses()["caching_disabled"] == before + 1
    assert progress.cache_misses == 1
    assert progress.cached is False
    left = NEW - max(0, STEPS[step] - 3)
    assert progress.prefills == 2 + left, "one that was not acknowledged, then the whole text for each token"
    assert mesh.held() == [[], [], []], "what the nodes had been given before is given back"


@pytest.mark.parametrize("step", list(STEPS))
def test_all_nodes_that_lose_a_session_at_once_cost_one_prefill(mesh: Mesh, expected: list[int], step: str) -> None:
    for client in mesh.clients:
        client.before[STEPS[step]] = lose_the_session
    ids, progress = mesh.run()
    assert ids == expected
    # Pieces follow each other: when the first node misses one, the others may not have been sent theirs yet.
    most = 3 if step == "second piece" else 1
    assert progress.prefills == 1 + progress.cache_misses <= 1 + most


def test_every_miss_in_one_answer_each_at_another_node_is_repaired(mesh: Mesh, expected: list[int]) -> None:
    for index, (step, reason) in enumerate(zip((5, 9, 13, 17), MISSES, strict=True)):
        mesh.clients[index % 3].before[step] = MISSES[reason]
    ids, progress = mesh.run()
    assert ids == expected
    assert (progress.prefills, progress.cache_misses) == (5, 4)


@pytest.mark.parametrize("node", [0, 1, 2])
def test_a_session_lost_before_every_token_costs_one_prefill_a_token_and_no_more(
    toy_folder: Any, nodes: list[NodeRuntime], uncaching: list[NodeRuntime], expected: list[int], node: int
) -> None:
    mesh = Mesh(toy_folder(FAMILY), nodes, uncaching)
    mesh.clients[node].before_each_decode = lose_the_session
    ids, progress = mesh.run()
    assert ids == expected
    assert (progress.prefills, progress.cache_misses) == (NEW, NEW - 1)
    assert mesh.prefills() == [NEW] * 3


@pytest.mark.parametrize("node", [0, 1, 2])
@pytest.mark.parametrize("reason", list(MISSES))
def test_a_node_that_misses_every_piece_of_a_prompt_ends_in_a_clear_error(mesh: Mesh, node: int, reason: str) -> None:
    mesh.clients[node].before_each_decode = MISSES[reason]
    with pytest.raises(GaveUp, match=rf"lost {MAX_MISSES + 1} times in a row.*{reason}") as given_up:
        mesh.run()
    assert isinstance(given_up.value.__cause__, KVCacheMiss)
    assert mesh.prefills()[node] == 1 + MAX_MISSES
    assert len(mesh.clients[0].seen) <= 3 * (1 + MAX_MISSES)
