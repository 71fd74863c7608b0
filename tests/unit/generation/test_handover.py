"""The loop over nodes in this process that hand steps over to each other, with faults put between them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from generation.handover import MOST_FAILURES, HandingOver
from generation.route import Hop, Route
from nodes.client import LocalNodeClient, NodeClient, StepAnswer
from nodes.errors import (
    BadRequest,
    ComputeFailed,
    HandoverFailed,
    MeshnetError,
    NodeProtocolError,
    NodeTimeout,
    NodeUnreachable,
)
from nodes.framing import Payload
from nodes.handover import Letter
from nodes.layers import LayerRange
from nodes.runtime import NodeRuntime
from nodes.sampling import Sampling
from nodes.wire import StepHeaders
from tests.meshes import LocalMesh, ranges, running_nodes
from tests.processes import wait_until
from tests.toys import reference_ids

PROMPT = torch.randint(1, 255, (21,), generator=torch.Generator().manual_seed(1)).tolist()
NEW = 12
URLS = ["http://node0", "http://node1", "http://node2"]

Fault = Callable[["HandingClient"], None]


class HandingClient(LocalNodeClient):
    """A node that hands over. `faults[n]` happens before its n-th decode, whoever sends it."""

    def __init__(self, runtime: NodeRuntime, url: str) -> None:
        super().__init__(runtime, url)
        self.faults: dict[int, Fault] = {}
        self.hidden: list[str] = []  # how each step came: relayed, or handed over
        self.letters: list[Letter | None] = []
        self.meddle: Callable[[Letter], Letter | None] = lambda letter: letter

    def forward(
        self, headers: StepHeaders, payload: Payload, *, timeout: float, patience: float | None = None
    ) -> StepAnswer:
        if headers.cache == "decode" and payload.hidden.shape[1] == 1:
            self.hidden.append("relayed" if payload.handover is None else "handed over")
            fault = self.faults.pop(len(self.hidden), None)
            if fault is not None:
                fault(self)
        if payload.handover is None:
            return self._runtime.forward(headers, payload)
        return self._runtime.handing_over.run(self._runtime, headers, payload)

    def hand_over(
        self,
        headers: StepHeaders,
        payload: Payload,
        *,
        timeout: float,
        patience: float | None = None,
        sent: Callable[[], object],
    ) -> StepAnswer:
        sent()
        return self.forward(headers, payload, timeout=timeout, patience=patience)

    def result(
        self, session_id: str, nonce: str, *, wait: float, timeout: float, patience: float | None = None
    ) -> Letter | None:
        said = self._runtime.handing_over.result(session_id, nonce, wait)
        letter = Letter.from_json(said) if said else None
        self.letters.append(letter)
        return self.meddle(letter) if letter else None


class Mesh:
    def __init__(self, folder: Any, nodes: list[NodeRuntime], clients: dict[str, HandingClient]) -> None:
        self.nodes = nodes
        self.clients = [HandingClient(node, url) for node, url in zip(nodes, URLS, strict=True)]
        clients.update({client.url: client for client in self.clients})
        self.mesh = LocalMesh(folder, list[NodeClient](self.clients), handover=True, piece_tokens=8)

    def run(self, **options: Any) -> tuple[list[int], Any]:
        loop = self.mesh.loop(PROMPT, NEW, **options)
        ids = list(loop.tokens())
        for node in self.nodes:
            node.release(loop.session_id)
        return ids, loop.progress

    def ways(self) -> list[str]:
        """How the decode steps came to the first node."""
        return self.clients[0].hidden


@pytest.fixture(scope="module")
def expected(toy_reference: Any) -> list[int]:
    ids = reference_ids(toy_reference("llama"), PROMPT, NEW)
    assert len(set(ids)) > 6, "a text that repeats itself would hide a shifted step"
    return ids


@pytest.fixture(scope="module")
def registry() -> dict[str, HandingClient]:
    return {}


@pytest.fixture(scope="module")
def three_nodes(toy_folder: Any, registry: dict[str, HandingClient]) -> Iterator[list[NodeRuntime]]:
    def connect(url: str) -> NodeClient:
        class Now:
            """Whoever has the place in the test that runs."""

            def forward(self, *args: Any, **kwargs: Any) -> StepAnswer:
                return registry[url].forward(*args, **kwargs)

            def tidy(self) -> None: ...

        return Now()  # type: ignore[return-value]

    with running_nodes(toy_folder("llama"), ranges(0, 1, 3, 4), connect=connect) as nodes:
        yield nodes


@pytest.fixture
def mesh(toy_folder: Any, three_nodes: list[NodeRuntime], registry: dict[str, HandingClient]) -> Mesh:
    for node in three_nodes:
        node.evict(everything=True)
    return Mesh(toy_folder("llama"), three_nodes, registry)


def events(progress: Any) -> list[tuple[str, str]]:
    return [(event, detail) for _, event, detail in progress.events if event not in ("prefill", "first token")]


def test_prompts_are_relayed_and_every_token_after_them_is_handed_over(mesh: Mesh, expected: list[int]) -> None:
    ids, progress = mesh.run()
    assert ids == expected
    assert [client.hidden for client in mesh.clients] == [["handed over"] * (NEW - 1)] * 3
    assert progress.touched == set(URLS)
    assert {url: times.steps for url, times in progress.hops.items()} == dict.fromkeys(URLS, 3 + NEW - 1)
    assert all(times.compute_ms > 0 for times in progress.hops.values())
    assert all(node.handing_over.letters.count() == (0, 0) for node in mesh.nodes)


@pytest.mark.parametrize(
    "sampling",
    [Sampling(temperature=1.0, seed=5), Sampling(temperature=0.7, seed=1, repetition_penalty=1.3, prompt_len=21)],
)
def test_sampled_texts_are_those_of_relayed_steps(mesh: Mesh, sampling: Sampling) -> None:
    handed, _ = mesh.run(job={"sampling": sampling})
    assert set(mesh.ways()) == {"handed over"}
    object.__setattr__(mesh.mesh.settings, "handover", False)
    assert mesh.run(job={"sampling": sampling})[0] == handed


def test_log_probabilities_come_with_the_token(mesh: Mesh) -> None:
    loop = mesh.mesh.loop(PROMPT, 3, job={"sampling": Sampling(logprobs=2)})
    for _ in loop.tokens():
        assert loop.logprobs is not None
        assert len(loop.logprobs.top) == 2
    assert mesh.ways() == ["handed over"] * 2


def evict(client: HandingClient) -> None:
    client._runtime.evict(everything=True)


@pytest.mark.parametrize("hop", range(3))
def test_a_cache_lost_at_any_hop_is_prefilled_again_and_steps_are_handed_over_again(
    mesh: Mesh, expected: list[int], hop: int
) -> None:
    mesh.clients[hop].faults[5] = evict
    ids, progress = mesh.run()
    assert ids == expected
    assert (progress.cache_misses, progress.reprefills, progress.failovers) == (1, 1, 0)
    assert events(progress)[0] == ("cache miss", f"unknown_session on {URLS[hop]}")
    assert set(mesh.ways()) == {"handed over"}


def raises(error: MeshnetError) -> Fault:
    def fault(client: HandingClient) -> None:
        raise error

    return fault


@pytest.mark.parametrize("hop", range(3))
def test_the_node_that_failed_is_blamed_wherever_it_stands(mesh: Mesh, expected: list[int], hop: int) -> None:
    mesh.clients[hop].faults[5] = raises(ComputeFailed())
    ids, progress = mesh.run()
    assert ids == expected
    assert progress.failovers == 1
    assert ("failover", f"compute_failed on {URLS[hop]}") in events(progress)
    assert mesh.mesh.directory._penalties.faults(URLS[hop]) == 0, "it has worked since"


@pytest.mark.parametrize("error", [NodeUnreachable(), NodeProtocolError(), BadRequest()])
@pytest.mark.parametrize("hop", [1, 2])
def test_two_nodes_that_do_not_reach_each_other_have_the_head_between_them(
    mesh: Mesh, expected: list[int], hop: int, error: MeshnetError
) -> None:
    mesh.clients[hop].faults[5] = raises(error)
    ids, progress = mesh.run()
    assert ids == expected
    assert (progress.failovers, progress.cache_misses, progress.reprefills) == (0, 0, 1)
    assert events(progress)[0] == ("relayed", f"no hand-over to {URLS[hop]}")
    assert mesh.ways()[:5] == ["handed over"] * 5
    assert set(mesh.ways()[5:]) == {"relayed"}
    mesh.clients[0].hidden.clear()
    mesh.run()
    assert set(mesh.ways()) == {"relayed"}, "the next generation knows it"


def test_links_that_fail_again_and_again_end_in_a_relayed_text(
    mesh: Mesh, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a prefill takes longer than a link is left alone: without an end there would be no token for ever."""
    monkeypatch.setattr(mesh.mesh.directory, "hand_over_failed", lambda urls, to: None)

    def refuse(client: HandingClient) -> None:
        if client.hidden[-1] == "handed over":
            raise NodeUnreachable()

    mesh.clients[1].faults.update(dict.fromkeys(range(5, 40), refuse))
    ids, progress = mesh.run()
    assert ids == expected
    assert progress.reprefills == MOST_FAILURES


def test_a_node_that_answers_so_to_a_relayed_step_is_broken(
    mesh: Mesh, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mesh.mesh.directory, "hand_over", lambda urls: None)
    mesh.clients[1].faults[3] = raises(HandoverFailed("of its own", to=URLS[2]))
    ids, progress = mesh.run()
    assert ids == expected
    assert progress.failovers == 1


def test_an_error_of_the_chain_ends_the_wait_for_the_result(mesh: Mesh, expected: list[int]) -> None:
    """The tail never hears of the step, and the head waits there."""
    mesh.clients[1].faults[5] = raises(NodeTimeout(node=URLS[1]))
    ids, progress = mesh.run()
    assert ids == expected
    assert ("failover", f"node_timeout on {URLS[1]}") in events(progress)
    wait_until(lambda: mesh.nodes[2].handing_over.letters.count() == (0, 0), message="somebody waits still")
    assert "relayed" in mesh.ways(), "what lies between the two may be what hangs"


def test_a_result_that_does_not_come_is_missed_once_all_nodes_are_done(
    mesh: Mesh, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("generation.handover.LATE_SECONDS", 0.05)
    lost = iter([None])
    mesh.clients[2].meddle = lambda letter: next(lost, letter)
    ids, progress = mesh.run()
    assert ids == expected
    assert ("failover", f"node_timeout on {URLS[2]}") in events(progress)


@pytest.mark.parametrize("hop", range(3))
def test_an_acknowledgement_that_is_not_right_is_a_broken_answer(mesh: Mesh, expected: list[int], hop: int) -> None:
    spoil = iter([True])

    def meddle(letter: Letter) -> Letter:
        if not next(spoil, False):
            return letter
        hops = list(letter.hops)
        hops[hop] = type(hops[hop])(hops[hop].held - 1, hops[hop].timings)
        return Letter(letter.token_id, letter.text, tuple(hops))

    mesh.clients[2].meddle = meddle
    ids, progress = mesh.run()
    assert ids == expected
    assert ("failover", f"node_protocol_error on {URLS[hop]}") in events(progress)


def test_a_result_without_every_hop_is_a_broken_answer(mesh: Mesh, expected: list[int]) -> None:
    spoil = iter([True])
    mesh.clients[2].meddle = lambda letter: (
        Letter(letter.token_id, letter.text, letter.hops[1:]) if next(spoil, False) else letter
    )
    ids, progress = mesh.run()
    assert ids == expected
    assert ("failover", f"node_protocol_error on {URLS[2]}") in events(progress)


def test_the_next_step_does_not_wait_for_the_chains_acknowledgement(mesh: Mesh, expected: list[int]) -> None:
    held, go_on = threading.Event(), threading.Event()
    first = mesh.clients[0]
    plain = first.forward

    def late(headers: StepHeaders, payload: Payload, **limits: Any) -> StepAnswer:
        answer = plain(headers, payload, **limits)
        if payload.handover is not None and not held.is_set():
            held.set()
            assert go_on.wait(30)
        return answer

    first.forward = late  # type: ignore[method-assign]
    try:
        assert mesh.run()[0] == expected
        assert held.is_set()
    finally:
        go_on.set()


def test_another_process_behind_the_url_is_noticed(mesh: Mesh, expected: list[int]) -> None:
    """From another machine an address may lead to another node than from the head's."""
    directory = mesh.mesh.directory
    plain = directory.hand_over
    directory.hand_over = lambda urls: plain(urls) and ["boot", *(plain(urls) or [])[1:]]  # type: ignore[method-assign]
    ids, progress = mesh.run()
    assert ids == expected
    assert events(progress)[0] == ("relayed", f"no hand-over to {URLS[0]}")


def route(*urls: str) -> Route:
    return Route(tuple(Hop(url, LayerRange(at, at + 1)) for at, url in enumerate(urls)), "m")


def handing(mesh: Mesh, *, handover: bool = True, cached: bool = True) -> HandingOver:
    progress = mesh.mesh.loop(PROMPT, 1).progress
    progress.cached = cached
    object.__setattr__(mesh.mesh.settings, "handover", handover)
    mesh.mesh.directory.ready(fresh=True)
    return HandingOver(mesh.mesh.directory, mesh.mesh.settings, progress)


def test_nothing_is_handed_over_unless_it_is_switched_on_cached_and_there_is_somebody(mesh: Mesh) -> None:
    assert handing(mesh).boot_ids(route(*URLS)) == [node.identity.boot_id for node in mesh.nodes]
    assert handing(mesh).boot_ids(route(URLS[0])) is None
    assert handing(mesh, cached=False).boot_ids(route(*URLS)) is None
    assert handing(mesh, handover=False).boot_ids(route(*URLS)) is None


def test_a_link_failure_of_one_direction_is_remembered_for_that_one(mesh: Mesh) -> None:
    found = handing(mesh)
    mesh.mesh.directory.hand_over_failed(URLS, URLS[1])
    assert found.boot_ids(route(*URLS)) is None
    assert found.boot_ids(route(*URLS[:2])) is None
    assert found.boot_ids(route(*URLS[1:])) is not None
    mesh.mesh.directory.handed_over(URLS)
    assert found.boot_ids(route(*URLS)) is not None


def test_the_failure_says_which_node_was_not_reached() -> None:
    assert HandoverFailed("No hand-over.", to="http://b").as_json() == {
        "error": "handover_failed",
        "detail": "No hand-over.",
        "to": "http://b",
    }
