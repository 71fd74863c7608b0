"""The loop over a real sharded toy model in this process, with faults put between it and its nodes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from generation.errors import GaveUp, NoRoute
from generation.head import MAX_FAILOVERS, MAX_MISSES
from generation.waiting_line import WaitingLine
from nodes.client import LocalNodeClient, NodeClient, StepAnswer
from nodes.errors import (
    Busy,
    ComputeFailed,
    Draining,
    KVCacheMiss,
    MeshnetError,
    NodeProtocolError,
    NodeTimeout,
    NodeUnreachable,
    WrongModel,
)
from nodes.framing import Payload
from nodes.kv_sessions import StoreLimits
from nodes.runtime import NodeRuntime
from nodes.sampling import Sampling, choose
from nodes.wire import StepHeaders
from tests.conftest import Clock
from tests.meshes import LocalMesh, ranges, running_nodes
from tests.processes import wait_until
from tests.toys import reference_ids

PROMPT = torch.randint(1, 255, (21,), generator=torch.Generator().manual_seed(1)).tolist()
NEW = 20

Fault = Callable[["FaultyClient", StepHeaders, Payload], StepAnswer]


class FaultyClient(LocalNodeClient):
    """A node that answers by script: `faults[n]` takes the place of its n-th step."""

    def __init__(self, runtime: NodeRuntime, url: str) -> None:
        super().__init__(runtime, url)
        self.faults: dict[int, Fault] = {}
        self.always: Fault | None = None
        self.seen: list[tuple[StepHeaders, int]] = []

    def forward(
        self, headers: StepHeaders, payload: Payload, *, timeout: float, patience: float | None = None
    ) -> StepAnswer:
        self.seen.append((headers, payload.hidden.shape[1]))
        fault = self.faults.pop(len(self.seen), None) or self.always
        return fault(self, headers, payload) if fault else self.plain(headers, payload)

    def plain(self, headers: StepHeaders, payload: Payload) -> StepAnswer:
        return super().forward(headers, payload, timeout=1.0)


class Mesh:
    def __init__(self, folder: Any, nodes: list[NodeRuntime], **settings: Any) -> None:
        self.nodes = nodes
        self.clients = [FaultyClient(node, f"local:{index}") for index, node in enumerate(nodes)]
        clients: list[NodeClient] = list(self.clients)
        self.mesh = LocalMesh(folder, clients, **settings)

    def run(self, **options: Any) -> tuple[list[int], Any]:
        loop = self.mesh.loop(PROMPT, NEW, **options)
        return list(loop.tokens()), loop.progress


@pytest.fixture(scope="module")
def expected(toy_reference: Any) -> list[int]:
    ids = reference_ids(toy_reference("llama"), PROMPT, NEW)
    assert len(set(ids)) > 10, "a text that repeats itself would hide a shifted step"
    return ids


@pytest.fixture(scope="module")
def three_nodes(toy_folder: Any) -> Iterator[list[NodeRuntime]]:
    with running_nodes(toy_folder("llama"), ranges(0, 1, 3, 4)) as nodes:
        yield nodes


@pytest.fixture
def mesh(toy_folder: Any, three_nodes: list[NodeRuntime]) -> Mesh:
    for node in three_nodes:
        node.evict(everything=True)
    return Mesh(toy_folder("llama"), three_nodes, piece_tokens=8)


def test_the_prompt_goes_in_pieces_and_then_one_token_a_step(mesh: Mesh, expected: list[int]) -> None:
    ids, progress = mesh.run()
    assert ids == expected
    assert (progress.prefills, progress.cache_misses, progress.failovers) == (1, 0, 0)
    for client in mesh.clients:
        assert [tokens for _, tokens in client.seen] == [8, 8, 5, *[1] * (NEW - 1)]
        assert [headers.cache for headers, _ in client.seen] == ["prefill", *["decode"] * (NEW + 1)]
        assert [headers.past_len for headers, _ in client.seen] == [None, 8, 16, *range(21, 21 + NEW - 1)]
        assert len({headers.session for headers, _ in client.seen}) == 1


def test_stateless_steps_give_the_same_text_and_leave_no_session(mesh: Mesh, expected: list[int]) -> None:
    ids, progress = mesh.run(job={"cache": False})
    assert ids == expected
    assert progress.prefills == NEW
    assert all(headers.session is None for client in mesh.clients for headers, _ in client.seen)
    assert all(not node.sessions()["sessions"] for node in mesh.nodes)


def evict(client: FaultyClient, headers: StepHeaders, payload: Payload) -> StepAnswer:
    client._runtime.evict(everything=True)
    return client.plain(headers, payload)


def lose_the_answer(client: FaultyClient, headers: StepHeaders, payload: Payload) -> StepAnswer:
    client.plain(headers, payload)
    raise NodeTimeout()


def refuse(error: MeshnetError) -> Fault:
    def fault(client: FaultyClient, headers: StepHeaders, payload: Payload) -> StepAnswer:
        raise error

    return fault


def half_an_answer(client: FaultyClient, headers: StepHeaders, payload: Payload) -> StepAnswer:
    answer = client.plain(headers, payload)
    return StepAnswer(hidden=torch.zeros(1, 7, 64), past_len=answer.past_len)


FAULTS: dict[str, Fault] = {
    "evicted": evict,
    "d04 answer lost": lose_the_answer,
    "unreachable": refuse(NodeUnreachable()),
    "broken compute": refuse(ComputeFailed()),
    "draining": refuse(Draining()),
    "wrong model": refuse(WrongModel()),
    "half an answer": half_an_answer,
    "past length": refuse(KVCacheMiss(reason="past_len_mismatch", expected=1, held=2)),
}


@pytest.mark.parametrize("node", [0, 1, 2])
@pytest.mark.parametrize("step", [2, 4, 13, 22])
@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_any_fault_at_any_node_and_step_leaves_the_text_unchanged(
    mesh: Mesh, expected: list[int], node: int, step: int, fault: str
) -> None:
    mesh.clients[node].faults[step] = FAULTS[fault]
    ids, progress = mesh.run()
    assert ids == expected
    assert progress.prefills == 2
    assert progress.cache_misses + progress.failovers == 1
    sessions = {headers.session for client in mesh.clients for headers, _ in client.seen}
    assert len(sessions) == 1, "a repair goes on under the same session id"
    for client in mesh.clients:
        assert client._runtime.sessions()["sessions"][0]["past_len"] == len(PROMPT) + NEW - 1


def test_after_an_eviction_the_text_is_cached_again(mesh: Mesh, expected: list[int]) -> None:
    mesh.clients[1].faults[10] = evict
    ids, _ = mesh.run()
    assert ids == expected
    lengths = [tokens for _, tokens in mesh.clients[1].seen]
    # 21 of the prompt and the 7 answered before, in pieces of 8, then one by one again
    assert lengths == [8, 8, 5, *[1] * 6, 1, 8, 8, 8, 4, *[1] * 12]


def test_the_time_line_tells_a_re_prefill_from_the_decode_after_it(mesh: Mesh) -> None:
    mesh.clients[1].faults[10] = evict
    _, progress = mesh.run()
    events = [(event, detail) for _, event, detail in progress.events]
    assert events == [
        ("prefill", f"{len(PROMPT)} tokens"),
        ("first token", ""),
        ("cache miss", "unknown_session on local:1"),
        ("re-prefill", f"{len(PROMPT) + 7} tokens"),
        ("decode", ""),
    ]
    moments = [at for at, _, _ in progress.events]
    assert moments == sorted(moments)


def test_a_node_that_always_misses_ends_in_an_error_and_not_in_a_loop(mesh: Mesh) -> None:
    def always(client: FaultyClient, headers: StepHeaders, payload: Payload) -> StepAnswer:
        if headers.cache == "decode":
            raise KVCacheMiss(reason="unknown_session", expected=headers.past_len, held=0)
        return client.plain(headers, payload)

    mesh.clients[2].always = always
    with pytest.raises(GaveUp, match=f"{MAX_MISSES + 1} times in a row"):
        mesh.run()
    prefills = [headers for headers, _ in mesh.clients[2].seen if headers.cache == "prefill"]
    assert len(prefills) == 1 + MAX_MISSES


def test_repairs_are_counted_between_tokens_not_over_the_whole_text(mesh: Mesh, expected: list[int]) -> None:
    mesh.clients[0].always = lambda client, headers, payload: (
        evict(client, headers, payload) if len(client.seen) % 7 == 0 else client.plain(headers, payload)
    )
    ids, progress = mesh.run()
    assert ids == expected
    assert progress.cache_misses > MAX_MISSES


@pytest.mark.parametrize("node", [0, 1, 2])
def test_a_node_that_does_not_cache_makes_the_whole_chain_stateless(mesh: Mesh, expected: list[int], node: int) -> None:
    def old(client: FaultyClient, headers: StepHeaders, payload: Payload) -> StepAnswer:
        return client.plain(StepHeaders(start_layer=headers.start_layer, end_layer=headers.end_layer), payload)

    mesh.clients[node].always = old
    ids, progress = mesh.run()
    assert ids == expected
    assert progress.cached is False
    assert all(not other.sessions()["sessions"] for other in mesh.nodes)


def test_a_tail_that_sends_text_only_is_tokenised(mesh: Mesh, expected: list[int]) -> None:
    def old_tail(client: FaultyClient, headers: StepHeaders, payload: Payload) -> StepAnswer:
        answer = client.plain(StepHeaders(start_layer=headers.start_layer, end_layer=headers.end_layer), payload)
        return StepAnswer(text=f"<{answer.token_id}>")

    mesh.clients[2].always = old_tail
    ids, progress = mesh.run(job={"encode": lambda text: [int(text.strip("<>"))]})
    assert ids == expected
    assert progress.cached is False


def test_an_empty_text_of_an_old_tail_is_the_end(mesh: Mesh) -> None:
    mesh.clients[2].always = lambda client, headers, payload: StepAnswer(text="")
    ids, progress = mesh.run(job={"encode": lambda text: []})
    assert (ids, progress.finish_reason) == ([], "stop")


def test_a_stop_id_ends_the_text_and_is_not_part_of_it(mesh: Mesh, expected: list[int]) -> None:
    loop = mesh.mesh.loop(PROMPT, NEW)
    stop = expected[6]
    object.__setattr__(loop._job, "stop_ids", frozenset({stop}))
    assert list(loop.tokens()) == expected[: expected.index(stop)]
    assert loop.progress.finish_reason == "stop"


def test_the_limit_ends_the_text(mesh: Mesh, expected: list[int]) -> None:
    loop = mesh.mesh.loop(PROMPT, 3)
    assert list(loop.tokens()) == expected[:3]
    assert (loop.progress.finish_reason, loop.progress.completion_tokens) == ("length", 3)
    assert len(mesh.clients[0].seen) == 5, "no step for a token that nobody wants"


def test_a_cancelled_loop_takes_no_further_step(mesh: Mesh, expected: list[int]) -> None:
    stop = False
    loop = mesh.mesh.loop(PROMPT, NEW, stopped=lambda: stop)
    tokens = loop.tokens()
    assert [next(tokens) for _ in range(3)] == expected[:3]
    steps = len(mesh.clients[0].seen)
    stop = True
    assert list(tokens) == []
    assert len(mesh.clients[0].seen) == steps
    assert loop.progress.finish_reason == ""


def test_d02_a_cancelled_prompt_sends_no_further_piece(mesh: Mesh) -> None:
    mesh_loop = mesh.mesh.loop(PROMPT, NEW, stopped=lambda: len(mesh.clients[0].seen) > 0)
    assert list(mesh_loop.tokens()) == []
    assert [len(client.seen) for client in mesh.clients] == [1, 1, 1]


def test_admission_is_told_once_the_first_piece_went_through_every_node(mesh: Mesh) -> None:
    seen: list[int] = []
    loop = mesh.mesh.loop(PROMPT, 1, admitted=lambda: seen.append(len(mesh.clients[2].seen)))
    list(loop.tokens())
    assert seen[0] == 1


def test_seeded_sampling_survives_an_eviction(mesh: Mesh) -> None:
    job = {"sampling": Sampling(temperature=0.9, top_p=0.95, seed=11)}
    undisturbed, _ = mesh.run(job=job)
    mesh.clients[1].faults[len(mesh.clients[1].seen) + 9] = evict
    disturbed, progress = mesh.run(job=job)
    assert disturbed == undisturbed
    assert progress.cache_misses == 1
    other, _ = mesh.run(job={"sampling": Sampling(temperature=0.9, top_p=0.95, seed=12)})
    assert other != undisturbed


@pytest.mark.parametrize("piece", [8, 512])
def test_penalties_count_the_whole_text_and_survive_evictions_and_failovers(
    toy_folder: Any, toy_reference: Any, three_nodes: list[NodeRuntime], piece: int
) -> None:
    sampling = Sampling(presence_penalty=0.7, frequency_penalty=0.9, repetition_penalty=1.3, prompt_len=len(PROMPT))
    model, ids = toy_reference("llama"), list(PROMPT)
    with torch.inference_mode():
        for _ in range(NEW):
            ids.append(choose(model(torch.tensor([ids])).logits[0, -1].float(), sampling, len(ids), ids))
    undisturbed = reference_ids(model, PROMPT, NEW)
    assert ids[len(PROMPT) :] != undisturbed, "the penalties change nothing here"
    mesh = Mesh(toy_folder("llama"), three_nodes, piece_tokens=piece)
    for fault in (None, "evicted", "d04 answer lost"):
        if fault is not None:
            mesh.clients[2].faults[len(mesh.clients[2].seen) + 9] = FAULTS[fault]
        found, progress = mesh.run(job={"sampling": sampling})
        assert found == ids[len(PROMPT) :]
        assert progress.reprefills == (fault is not None)
    stateless, _ = mesh.run(job={"sampling": sampling, "cache": False})
    assert stateless == ids[len(PROMPT) :]


def test_a_full_node_is_waited_for_and_slots_elsewhere_are_given_back(toy_folder: Any, expected: list[int]) -> None:
    with running_nodes(toy_folder("llama"), ranges(0, 2, 4), limits=StoreLimits(max_sessions=1)) as nodes:
        mesh = Mesh(toy_folder("llama"), nodes)
        other = "o" * 22
        nodes[1].forward(StepHeaders(other, "prefill"), Payload(torch.randn(1, 3, 64)))
        waits: list[float] = []
        held_while_waiting: list[int] = []

        def wait(seconds: float) -> None:
            waits.append(seconds)
            held_while_waiting.append(len(nodes[0].sessions()["sessions"]))
            if len(waits) == 3:
                nodes[1].release(other)

        ids, progress = mesh.run(wait=wait)
    assert ids == expected
    assert len(waits) == 3
    assert held_while_waiting == [0, 0, 0]
    assert (progress.cache_misses, progress.failovers) == (0, 0)


def test_a_node_that_was_not_heard_of_since_it_failed_is_not_told_to_free_a_slot(
    mesh: Mesh, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    for client in mesh.clients:
        give_back = client.give_back
        monkeypatch.setattr(
            client, "give_back", lambda *a, url=client.url, give=give_back, **k: (told.append(url), give(*a, **k))
        )

    def full(client: FaultyClient, headers: StepHeaders, payload: Payload) -> StepAnswer:
        mesh.mesh.directory.failed("local:0")
        raise Busy()

    mesh.clients[2].faults[1] = full
    ids, progress = mesh.run(wait=lambda seconds: None)
    assert ids == expected
    assert told == ["local:1", "local:2"]
    assert "local:0" in progress.touched, "it is released with the others at the end"


def test_who_waits_for_a_slot_is_not_turned_away_by_layers_that_are_gone_for_a_moment(
    toy_folder: Any, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_nodes(toy_folder("llama"), ranges(0, 2, 4), limits=StoreLimits(max_sessions=1)) as nodes:
        mesh = Mesh(toy_folder("llama"), nodes)
        other = "o" * 22
        nodes[1].forward(StepHeaders(other, "prefill"), Payload(torch.randn(1, 3, 64)))
        waits: list[str] = []
        touched: list[set[str]] = []

        def wait(seconds: float) -> None:
            touched.append(set(loop.progress.touched))
            waits.append(loop.progress.events[-1][2])
            if len(waits) == 1:
                monkeypatch.setattr(mesh.clients[1], "status", refuse(NodeUnreachable()))
                mesh.mesh.directory.forget("local:1")
            elif len(waits) == 2:
                monkeypatch.undo()
                nodes[1].release(other)

        loop = mesh.mesh.loop(PROMPT, NEW, wait=wait)
        assert list(loop.tokens()) == expected
    assert waits[:2] == ["busy", "no_route"]
    assert touched[0] == set(), "what was given back is not given back again"


def test_the_wait_for_a_full_node_ends(toy_folder: Any, clock: Clock) -> None:
    with running_nodes(toy_folder("llama"), ranges(0, 4), limits=StoreLimits(max_sessions=1)) as nodes:
        mesh = Mesh(toy_folder("llama"), nodes, busy_wait=5.0)
        nodes[0].forward(StepHeaders("o" * 22, "prefill"), Payload(torch.randn(1, 3, 64)))
        with pytest.raises(Busy):
            mesh.run(wait=clock.advance, clock=clock)
    assert 5 <= clock.now - 1000 <= 7


def test_those_who_wait_are_served_in_the_order_in_which_they_came(toy_folder: Any) -> None:
    """Three chats on one slot that somebody else holds: the first in line gets it first."""
    with running_nodes(toy_folder("llama"), ranges(0, 4), limits=StoreLimits(max_sessions=1)) as nodes:
        mesh = Mesh(toy_folder("llama"), nodes)
        nodes[0].forward(StepHeaders("o" * 22, "prefill"), Payload(torch.randn(1, 3, 64)))
        line = WaitingLine()
        order: list[int] = []
        in_the_way: list[bool] = []
        threads = []
        for number in range(3):

            def chat(number: int = number) -> None:
                loop = mesh.mesh.loop(
                    PROMPT, 2, line=line, wait=lambda seconds: threading.Event().wait(min(seconds, 0.02))
                )
                for _ in loop.tokens():
                    if loop.progress.completion_tokens == 1:
                        order.append(number)
                        in_the_way.append(line.holds(loop))
                nodes[0].release(loop.session_id)

            threads.append(threading.Thread(target=chat))
            threads[-1].start()
            wait_until(lambda number=number: len(line) == number + 1, 5)
        nodes[0].release("o" * 22)
        for thread in threads:
            thread.join(20)
    assert order == [0, 1, 2]
    assert in_the_way == [False] * 3, "who has its slot keeps nobody from asking"
    assert len(line) == 0


def test_layers_that_are_gone_for_a_moment_are_waited_for_in_the_middle_of_an_answer(
    mesh: Mesh, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    tail = mesh.clients[2]

    def gone(client: FaultyClient, headers: StepHeaders, payload: Payload) -> StepAnswer:
        monkeypatch.setattr(tail, "status", refuse(NodeUnreachable()))
        raise NodeUnreachable()

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            monkeypatch.undo()

    tail.faults[9] = gone
    ids, progress = mesh.run(wait=wait)
    assert ids == expected
    assert len(waits) >= 2
    assert progress.failovers == 1


def test_a_token_that_the_model_does_not_have_is_not_believed(mesh: Mesh, expected: list[int]) -> None:
    mesh.clients[2].faults[7] = lambda client, headers, payload: StepAnswer(
        token_id=10**9, has_token_id=True, past_len=client.plain(headers, payload).past_len
    )
    ids, progress = mesh.run()
    assert ids == expected
    assert progress.failovers == 1


def test_a_node_that_breaks_the_protocol_is_avoided_when_there_is_another(toy_folder: Any, expected: list[int]) -> None:
    def liar(client: FaultyClient, headers: StepHeaders, payload: Payload) -> StepAnswer:
        return StepAnswer(hidden=client.plain(headers, payload).hidden, past_len=99)

    with running_nodes(toy_folder("llama"), ranges(0, 2) + ranges(0, 2) + ranges(2, 4)) as nodes:
        mesh = Mesh(toy_folder("llama"), nodes)
        mesh.clients[0].always = liar
        ids, progress = mesh.run()
    assert ids == expected
    assert progress.failovers <= 1


def test_no_route_is_said_before_any_step(toy_folder: Any) -> None:
    with running_nodes(toy_folder("llama"), ranges(0, 2)) as nodes:
        mesh = Mesh(toy_folder("llama"), nodes)
        with pytest.raises(NoRoute, match="2:4"):
            mesh.run()
        assert mesh.clients[0].seen == []


def test_a_node_that_claims_another_length_is_not_believed(mesh: Mesh) -> None:
    def liar(client: FaultyClient, headers: StepHeaders, payload: Payload) -> StepAnswer:
        answer = client.plain(headers, payload)
        return StepAnswer(hidden=answer.hidden, past_len=99)

    mesh.clients[0].always = liar
    with pytest.raises(GaveUp, match="99 tokens"):
        mesh.run()
    assert len(mesh.clients[0].seen) == 1 + MAX_FAILOVERS


def test_a_replica_takes_over_from_a_node_that_fails(toy_folder: Any, expected: list[int]) -> None:
    with running_nodes(toy_folder("llama"), ranges(0, 2, 4) + ranges(2, 4)) as nodes:
        mesh = Mesh(toy_folder("llama"), nodes)
        failed: list[str] = []

        def fail_once(client: FaultyClient, headers: StepHeaders, payload: Payload) -> StepAnswer:
            if len(client.seen) == 6 and not failed:
                failed.append(client.url)
                raise NodeProtocolError()
            return client.plain(headers, payload)

        for client in mesh.clients[1:]:
            client.always = fail_once
        ids, progress = mesh.run()
    assert ids == expected
    assert progress.failovers == 1
    assert progress.route is not None
    assert [hop.url for hop in progress.route.hops] == ["local:0", *({"local:1", "local:2"} - set(failed))]


def test_speed_and_first_token_are_measured_with_the_given_clock(mesh: Mesh, clock: Clock) -> None:
    loop = mesh.mesh.loop(PROMPT, 5, clock=clock)
    for _ in loop.tokens():
        clock.advance(0.5)
    assert loop.progress.time_to_first_token == 0.0
    assert loop.progress.tokens_per_second == 2.0
