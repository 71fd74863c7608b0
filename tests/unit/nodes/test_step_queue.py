"""Many generations on one engine: what runs together, and that nobody's text, miss or failure touches another."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from nodes.batching import Budget
from nodes.errors import ComputeFailed, Draining, KVCacheMiss
from nodes.framing import Payload
from nodes.kv_sessions import StoreLimits
from nodes.runtime import NodeRuntime
from nodes.wire import StepHeaders, mint_session_id
from tests.meshes import LocalMesh, local_clients, ranges, running_nodes
from tests.processes import wait_until
from tests.toys import reference_ids

NEW = 16
SESSIONS = 6


def prompts(seed: int = 1) -> list[list[int]]:
    made = torch.Generator().manual_seed(seed)
    return [torch.randint(1, 255, (5 + 7 * index,), generator=made).tolist() for index in range(SESSIONS)]


@pytest.fixture
def nodes(toy_folder: Any) -> Iterator[list[NodeRuntime]]:
    with running_nodes(
        toy_folder("llama"), ranges(0, 2, 4), limits=StoreLimits(max_sessions=16), budget=Budget(alone=16, beside=4)
    ) as running:
        yield running


@contextmanager
def held_engine(node: NodeRuntime) -> Iterator[None]:
    """Inside, the engine does nothing: steps that arrive wait, and run together afterwards."""
    go = threading.Event()
    node._engine.submit(lambda: go.wait(20))
    try:
        yield
    finally:
        go.set()


def together(node: NodeRuntime, steps: list[tuple[StepHeaders, Payload]]) -> list[Any]:
    """Answers or errors of steps that are in one turn."""
    found: list[Any] = [None] * len(steps)

    def run(index: int) -> None:
        try:
            found[index] = node.forward(*steps[index])
        except Exception as error:
            found[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(steps))]
    with held_engine(node):
        for index, thread in enumerate(threads):
            thread.start()
            wait_until(lambda index=index: len(node._steps._waiting) == index + 1, 5)
    for thread in threads:
        thread.join(20)
    return found


def hidden(tokens: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(1, tokens, 64, generator=torch.Generator().manual_seed(seed))


def prefilled(node: NodeRuntime, tokens: int, seed: int) -> str:
    session = mint_session_id()
    node.forward(StepHeaders(session, "prefill"), Payload(hidden(tokens, seed)))
    return session


def decode(session: str, past_len: int, seed: int = 9) -> tuple[StepHeaders, Payload]:
    return StepHeaders(session, "decode", past_len), Payload(hidden(1, seed))


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "qwen3_moe", "qwen3_next"])
def test_many_at_once_each_have_the_text_that_they_have_alone(toy_folder: Any, toy_reference: Any, family: str) -> None:
    n_layers = toy_reference(family).config.num_hidden_layers
    splits = ranges(0, n_layers // 2, n_layers)
    options: dict[str, Any] = {"limits": StoreLimits(max_sessions=16), "budget": Budget(alone=16, beside=4)}
    with running_nodes(toy_folder(family), splits, **options) as nodes:
        mesh = LocalMesh(toy_folder(family), local_clients(nodes), piece_tokens=12)
        texts: dict[int, list[int]] = {}

        def chat(index: int, prompt: list[int]) -> None:
            rng = random.Random(index)  # noqa: S311
            loop = mesh.loop(prompt, NEW)
            texts[index] = []
            for token_id in loop.tokens():
                texts[index].append(token_id)
                if rng.random() < 0.1:
                    nodes[rng.randrange(2)].evict(ids=[loop.session_id])
            for node in nodes:
                node.release(loop.session_id)

        threads = [threading.Thread(target=chat, args=(index, text)) for index, text in enumerate(prompts())]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        work = nodes[0].status()["work"]
    assert texts == {index: reference_ids(toy_reference(family), text, NEW) for index, text in enumerate(prompts())}
    assert work["turn_steps"] > work["turns"], "nothing ran together"


def test_waiting_steps_run_in_one_turn(nodes: list[NodeRuntime]) -> None:
    node = nodes[0]
    sessions = [prefilled(node, 3 + index, index) for index in range(4)]
    alone = [node.forward(StepHeaders(), Payload(torch.cat([hidden(3 + i, i), hidden(1)], 1))) for i in range(4)]
    before = node.status()["work"]["turns"]
    found = together(node, [decode(session, 3 + index, 0) for index, session in enumerate(sessions)])
    assert node.status()["work"]["turns"] == before + 1
    for index, (answer, whole) in enumerate(zip(found, alone, strict=True)):
        assert torch.allclose(answer.hidden, whole.hidden[:, -1:], atol=1e-4)
        assert answer.past_len == 4 + index


def test_a_miss_among_them_is_told_to_its_own_session_alone(nodes: list[NodeRuntime]) -> None:
    node = nodes[0]
    one, other = prefilled(node, 5, 1), prefilled(node, 6, 2)
    wrong, unknown, right = together(node, [decode(one, 7), decode(other, 4), decode(prefilled(node, 3, 3), 3)])
    for miss in (wrong, unknown):
        assert isinstance(miss, KVCacheMiss) and miss.extra["reason"] == "past_len_mismatch"
    assert right.past_len == 4
    assert {row["past_len"] for row in node.sessions()["sessions"]} == {5, 6, 4}, "nothing changed for the others"


def test_d10_the_same_step_twice_in_one_turn_appends_once(nodes: list[NodeRuntime]) -> None:
    node = nodes[0]
    session = prefilled(node, 5, 1)
    found = together(node, [decode(session, 5), decode(session, 5)])
    assert sorted(type(one).__name__ for one in found) == ["KVCacheMiss", "StepAnswer"]
    assert [row["past_len"] for row in node.sessions()["sessions"]] == [6]


def test_a_long_prompt_runs_over_several_turns_and_answers_go_on_between_them(nodes: list[NodeRuntime]) -> None:
    node = nodes[0]
    running = prefilled(node, 5, 1)
    node.forward(*decode(running, 5))
    before = node.status()["work"]
    prompt = (StepHeaders(mint_session_id(), "prefill"), Payload(hidden(30, 3)))
    whole = node.forward(StepHeaders(), Payload(hidden(30, 3))).hidden
    answer, token = together(node, [prompt, decode(running, 6)])
    assert torch.allclose(answer.hidden, whole, atol=1e-4)
    assert (answer.past_len, token.past_len) == (30, 7)
    after = node.status()["work"]
    assert after["turns"] - before["turns"] == 8, "30 tokens, 4 in each turn"


def test_nan_in_one_session_fails_that_one_alone(nodes: list[NodeRuntime], monkeypatch: pytest.MonkeyPatch) -> None:
    node = nodes[0]
    one, other = prefilled(node, 5, 1), prefilled(node, 6, 2)
    packed = node._shard.forward_packed

    def poisoned(parts: Any, layers: Any = None) -> list[torch.Tensor]:
        found = packed(parts, layers)
        return [found[0] * float("nan"), *found[1:]]

    monkeypatch.setattr(node._shard, "forward_packed", poisoned)
    failed, well = together(node, [decode(one, 5), decode(other, 6)])
    assert isinstance(failed, ComputeFailed)
    assert well.past_len == 7
    assert [row["id"] for row in node.sessions()["sessions"]] == [other]


def test_an_exception_inside_a_packed_step_costs_each_session_one_prefill(
    nodes: list[NodeRuntime], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = nodes[0]
    one, other = prefilled(node, 5, 1), prefilled(node, 6, 2)
    whole = node.forward(StepHeaders(), Payload(hidden(7, 3))).hidden

    def broken(parts: Any, layers: Any = None) -> list[torch.Tensor]:
        parts[0].cache.update(torch.zeros(1, 2, 1, 16), torch.zeros(1, 2, 1, 16), 0)
        raise RuntimeError("half-way")

    monkeypatch.setattr(node._shard, "forward_packed", broken)
    fresh = (StepHeaders(mint_session_id(), "prefill"), Payload(hidden(7, 3)))
    first, prompt, second = together(node, [decode(one, 5), fresh, decode(other, 6)])
    for lost in (first, second):
        assert isinstance(lost, KVCacheMiss) and lost.extra["reason"] == "unknown_session"
    assert torch.allclose(prompt.hidden, whole, atol=1e-4), "a prompt begins again by itself"
    assert [row["past_len"] for row in node.sessions()["sessions"]] == [7]
    monkeypatch.undo()
    assert node.forward(StepHeaders(one, "prefill"), Payload(hidden(5, 1))).past_len == 5


def test_a_step_that_fails_alone_is_that_steps_failure(
    nodes: list[NodeRuntime], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = nodes[0]
    session = prefilled(node, 5, 1)

    def broken(*args: Any, **options: Any) -> torch.Tensor:
        raise RuntimeError("no")

    monkeypatch.setattr(node._shard, "forward", broken)
    with pytest.raises(ComputeFailed):
        node.forward(*decode(session, 5))
    monkeypatch.undo()
    assert node.sessions()["sessions"] == []


def test_a_bug_in_a_turn_leaves_nobody_waiting(nodes: list[NodeRuntime], monkeypatch: pytest.MonkeyPatch) -> None:
    node = nodes[0]
    session = prefilled(node, 5, 1)

    def bug(turns: Any) -> Any:
        raise AssertionError("a bug")

    monkeypatch.setattr(node._runner, "run", bug)
    with pytest.raises(ComputeFailed):
        node.forward(*decode(session, 5))


def test_after_the_engines_end_steps_are_refused(toy_folder: Any) -> None:
    with running_nodes(toy_folder("llama"), ranges(0, 2)) as (node,):
        session = prefilled(node, 5, 1)
        node._engine.stop()
        with pytest.raises(Draining):
            node.forward(*decode(session, 5))
        assert node._steps._waiting == []


def test_a_release_in_the_middle_of_a_long_prompt_leaves_nothing_behind(nodes: list[NodeRuntime]) -> None:
    node = nodes[0]
    running, session = prefilled(node, 5, 1), mint_session_id()
    node.forward(*decode(running, 5))
    found: list[Any] = []

    def prompt() -> None:
        try:
            found.append(node.forward(StepHeaders(session, "prefill"), Payload(hidden(100, 3))))
        except Exception as error:
            found.append(error)

    with held_engine(node):
        thread = threading.Thread(target=prompt)
        thread.start()
        wait_until(lambda: len(node._steps._waiting) == 1, 5)
        node.release(session)
    thread.join(20)
    assert found
    assert [row["id"] for row in node.sessions()["sessions"]] == [running]


def test_steps_that_ran_together_wait_for_each_other(nodes: list[NodeRuntime], monkeypatch: pytest.MonkeyPatch) -> None:
    """The first comes to an idle engine, and yet the two are in one turn."""
    node = nodes[0]
    one, other = prefilled(node, 5, 1), prefilled(node, 6, 2)
    together(node, [decode(one, 5), decode(other, 6)])
    monkeypatch.setattr("nodes.step_groups.PATIENCE", 1e6)
    monkeypatch.setattr("nodes.step_groups.MOST_SECONDS", 20.0)
    before = node.status()["work"]["turns"]
    found: list[int | None] = []
    first = threading.Thread(target=lambda: found.append(node.forward(*decode(one, 6)).past_len))
    first.start()
    wait_until(lambda: len(node._steps._waiting) == 1, 5)
    found.append(node.forward(*decode(other, 7)).past_len)
    first.join(20)
    assert sorted(found, key=str) == [7, 8]
    assert node.status()["work"]["turns"] == before + 1


def test_a_session_that_is_gone_holds_the_others_of_its_group_up_only_once(
    nodes: list[NodeRuntime], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = nodes[0]
    one, other = prefilled(node, 5, 1), prefilled(node, 6, 2)
    together(node, [decode(one, 5), decode(other, 6)])
    node.release(other)
    assert node._steps._groups.patience(one, {one}) > 0
    assert node.forward(*decode(one, 6)).past_len == 7
    assert node._steps._groups.patience(one, {one}) == 0
