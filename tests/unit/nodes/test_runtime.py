from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from nodes.errors import (
    BadRequest,
    Busy,
    ComputeFailed,
    Draining,
    KVCacheMiss,
    MeshnetError,
    Released,
    WrongLayers,
    WrongModel,
)
from nodes.framing import Payload
from nodes.kv_sessions import StoreLimits
from nodes.layers import LayerRange
from nodes.runtime import NodeRuntime
from nodes.wire import StepHeaders, mint_session_id
from tests.meshes import FINGERPRINT, ranges, running_nodes
from tests.processes import wait_until


@pytest.fixture
def nodes(toy_folder: Any) -> Iterator[list[NodeRuntime]]:
    with running_nodes(toy_folder("llama"), ranges(0, 2, 4)) as running:
        yield running


def hidden(tokens: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(1, tokens, 64, generator=torch.Generator().manual_seed(seed))


def prefill(node: NodeRuntime, tokens: int = 12) -> str:
    session = mint_session_id()
    answer = node.forward(StepHeaders(session, "prefill"), Payload(hidden(tokens)))
    assert answer.past_len == tokens
    return session


def held(node: NodeRuntime) -> dict[str, int]:
    return {row["id"]: row["past_len"] for row in node.sessions()["sessions"]}


def test_a_decode_continues_where_the_prefill_ended(nodes: list[NodeRuntime]) -> None:
    first = nodes[0]
    whole = first.forward(StepHeaders(), Payload(hidden(13))).hidden
    session = mint_session_id()
    first.forward(StepHeaders(session, "prefill"), Payload(hidden(13)[:, :12]))
    step = first.forward(StepHeaders(session, "decode", 12), Payload(hidden(13)[:, 12:]))
    assert whole is not None and step.hidden is not None
    assert torch.allclose(step.hidden, whole[:, 12:], atol=1e-5)
    assert step.past_len == 13
    assert held(first) == {session: 13}


def test_answers_are_plain_tensors_outside_the_engine(nodes: list[NodeRuntime]) -> None:
    answer = nodes[0].forward(StepHeaders(), Payload(hidden(3)))
    assert answer.hidden is not None
    assert not answer.hidden.is_inference()
    assert not answer.hidden.requires_grad


def test_the_tail_answers_a_token_and_only_when_one_is_wanted(nodes: list[NodeRuntime]) -> None:
    tail = nodes[1]
    answer = tail.forward(StepHeaders(), Payload(hidden(3)))
    assert answer.hidden is None and answer.has_token_id and isinstance(answer.token_id, int)
    unwanted = tail.forward(StepHeaders(), Payload(hidden(3), sampling={"want_token": False}))
    assert unwanted.has_token_id and unwanted.token_id is None


@pytest.mark.parametrize("past_len", [11, 14])
def test_a02_a_wrong_past_length_is_a_miss_and_changes_nothing(nodes: list[NodeRuntime], past_len: int) -> None:
    for node in nodes:
        session = prefill(node, 12)
        with pytest.raises(KVCacheMiss):
            node.forward(StepHeaders(session, "decode", past_len), Payload(hidden(1)))
        assert held(node)[session] == 12


def test_d10_of_two_threads_on_one_session_exactly_one_appends(nodes: list[NodeRuntime]) -> None:
    node = nodes[0]
    session = prefill(node, 12)
    outcomes: list[str] = []
    together = threading.Barrier(2)

    def step(seed: int) -> None:
        together.wait()
        try:
            node.forward(StepHeaders(session, "decode", 12), Payload(hidden(1, seed)))
            outcomes.append("done")
        except KVCacheMiss as miss:
            outcomes.append(miss.extra["reason"])

    threads = [threading.Thread(target=step, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["done", "past_len_mismatch"]
    assert held(node) == {session: 13}


BAD: list[tuple[type[MeshnetError], StepHeaders, Payload, str]] = [
    (BadRequest, StepHeaders(), Payload(torch.zeros(1, 2, 65)), "64 values"),
    (BadRequest, StepHeaders(), Payload(torch.zeros(1, 2, 64, dtype=torch.bfloat16)), "float32"),
    (BadRequest, StepHeaders(), Payload(torch.zeros(1, 513, 64)), "513 tokens"),
    (BadRequest, StepHeaders("s" * 22, "decode", 512), Payload(torch.zeros(1, 1, 64)), "513 tokens"),
    (BadRequest, StepHeaders(start_layer=1, end_layer=1), Payload(torch.zeros(1, 2, 64)), "no layer"),
    (WrongLayers, StepHeaders(start_layer=1, end_layer=3), Payload(torch.zeros(1, 2, 64)), "0:2"),
    (WrongModel, StepHeaders(model="another"), Payload(torch.zeros(1, 2, 64)), FINGERPRINT),
    (BadRequest, StepHeaders(), Payload(torch.zeros(1, 2, 64), sampling={"temperature": 1}), "sampling"),
    (BadRequest, StepHeaders(), Payload(torch.zeros(1, 1, 64), torch.tensor([[320]])), "token_ids"),
    (BadRequest, StepHeaders("s" * 22, "prefill"), Payload(torch.zeros(1, 2, 63)), "64 values"),
]


@pytest.mark.parametrize(("error", "headers", "payload", "named"), BAD)
def test_a_bad_step_is_refused_by_name_and_leaves_no_session(
    nodes: list[NodeRuntime], error: type[MeshnetError], headers: StepHeaders, payload: Payload, named: str
) -> None:
    other = prefill(nodes[0])
    with pytest.raises(error, match=named):
        nodes[0].forward(headers, payload)
    assert held(nodes[0]) == {other: 12}


def test_a05_more_than_one_text_at_once_is_not_a_step() -> None:
    from nodes import framing

    with pytest.raises(BadRequest, match=r"\[1, T"):
        framing.decode(framing.encode(Payload(torch.zeros(2, 3, 64))))


def test_a_layer_that_gives_nan_fails_cleanly_and_only_its_session(nodes: list[NodeRuntime]) -> None:
    node = nodes[0]
    other, session = prefill(node), prefill(node)
    norm = node._shard._model.model.layers[0].input_layernorm.weight
    kept = norm.clone()
    norm.fill_(float("nan"))
    with pytest.raises(ComputeFailed, match="NaN"):
        node.forward(StepHeaders(session, "decode", 12), Payload(hidden(1)))
    norm.copy_(kept)
    assert held(node) == {other: 12}
    assert node.sessions()["stats"]["evictions"]["error"] == 1
    assert node.forward(StepHeaders(other, "decode", 12), Payload(hidden(1))).past_len == 13


def test_a_layer_that_raises_half_way_drops_its_session(nodes: list[NodeRuntime]) -> None:
    node = nodes[0]
    session = prefill(node)
    second = node._shard._model.model.layers[1]

    def fail(*_: Any) -> None:
        raise RuntimeError("on purpose")

    hook = second.register_forward_pre_hook(fail)
    with pytest.raises(ComputeFailed, match="RuntimeError"):
        node.forward(StepHeaders(session, "decode", 12), Payload(hidden(1)))
    hook.remove()
    with pytest.raises(KVCacheMiss):
        node.forward(StepHeaders(session, "decode", 12), Payload(hidden(1)))


def test_a_released_session_stays_gone(nodes: list[NodeRuntime]) -> None:
    session = prefill(nodes[0])
    assert nodes[0].release(session)
    for headers in (StepHeaders(session, "decode", 12), StepHeaders(session, "prefill")):
        with pytest.raises(Released):
            nodes[0].forward(headers, Payload(hidden(1)))


def test_a_draining_node_takes_no_new_session_and_goes_on_with_those_it_has(nodes: list[NodeRuntime]) -> None:
    node = nodes[0]
    session = prefill(node)
    node.drain()
    assert node.status()["state"] == "draining"
    for headers in (StepHeaders(mint_session_id(), "prefill"), StepHeaders()):
        with pytest.raises(Draining):
            node.forward(headers, Payload(hidden(2)))
    assert node.forward(StepHeaders(session, "decode", 12), Payload(hidden(1))).past_len == 13


def test_f08_a_node_that_lets_go_sends_running_answers_elsewhere(nodes: list[NodeRuntime]) -> None:
    node = nodes[0]
    session = prefill(node)
    node.let_go()
    with pytest.raises(Draining):
        node.forward(StepHeaders(session, "decode", 12), Payload(hidden(1)))


def test_a_node_says_how_busy_and_how_fast_it_is(nodes: list[NodeRuntime]) -> None:
    node = nodes[0]
    assert (node.status()["busy_sessions"], node.status()["layer_ms"]) == (0, None)
    session = prefill(node)
    answer = node.forward(StepHeaders(session, "decode", 12), Payload(hidden(1)))
    status = node.status()
    layers = status["end_layer"] - status["start_layer"]
    assert (status["busy_sessions"], status["max_sessions"]) == (1, StoreLimits().max_sessions)
    assert status["layer_ms"] == pytest.approx(answer.timings.compute_ms / layers)
    node.release(session)
    assert node.status()["busy_sessions"] == 0


PENALTY = {"repetition_penalty": 1.5}


def ids(tokens: int, first: int = 5) -> torch.Tensor:
    return torch.arange(first, first + tokens)[None]


def test_penalties_need_the_ids_of_every_step(nodes: list[NodeRuntime]) -> None:
    tail = nodes[1]
    session = mint_session_id()
    with pytest.raises(BadRequest, match="token_ids"):
        tail.forward(StepHeaders(session, "prefill"), Payload(hidden(3), sampling=PENALTY))
    tail.forward(StepHeaders(session, "prefill"), Payload(hidden(3), ids(3), {"want_token": False}))
    answer = tail.forward(StepHeaders(session, "decode", 3), Payload(hidden(2), ids(2), PENALTY))
    assert answer.token_id is not None
    with pytest.raises(BadRequest, match="token_ids"):
        tail.forward(StepHeaders(session, "decode", 5), Payload(hidden(1), sampling=PENALTY))
    assert held(tail) == {}, "what such a step has half done is not gone on with"


def test_a_prefill_starts_the_ids_anew(nodes: list[NodeRuntime]) -> None:
    tail = nodes[1]
    session = mint_session_id()
    bans_seven = {"repetition_penalty": 1000.0}

    def chosen(first: int) -> int | None:
        return tail.forward(StepHeaders(session, "prefill"), Payload(hidden(3), ids(3, first), bans_seven)).token_id

    fresh = [chosen(first) for first in (5, 100, 5)]
    assert fresh[0] == fresh[2], "what was sent in between is forgotten"


def test_the_tail_refuses_a_bias_for_a_token_that_it_does_not_have(nodes: list[NodeRuntime]) -> None:
    with pytest.raises(BadRequest, match="logit_bias"):
        nodes[1].forward(StepHeaders(), Payload(hidden(3), sampling={"logit_bias": [[320, 1.0]]}))


def test_the_tail_tells_log_probabilities_when_they_are_asked_for(nodes: list[NodeRuntime]) -> None:
    asked = nodes[1].forward(StepHeaders(), Payload(hidden(3), sampling={"logprobs": 2})).logprobs
    assert asked is not None and len(asked.top) == 2 and asked.logprob == asked.top[0][1]
    assert nodes[1].forward(StepHeaders(), Payload(hidden(3))).logprobs is None


def test_a_node_whose_caching_is_off_does_not_acknowledge_and_refuses_decodes(toy_folder: Any) -> None:
    with running_nodes(toy_folder("llama"), ranges(0, 2), kv_enabled=False) as (node,):
        assert node.status()["supports_kv_cache"] is False
        answer = node.forward(StepHeaders("s" * 22, "prefill"), Payload(hidden(3)))
        assert answer.past_len is None and answer.hidden is not None
        with pytest.raises(KVCacheMiss) as miss:
            node.forward(StepHeaders("s" * 22, "decode", 3), Payload(hidden(1)))
        assert miss.value.extra["reason"] == "caching_disabled"
        assert node.sessions()["sessions"] == []


def test_stateless_steps_leave_threads_for_everything_else(toy_folder: Any) -> None:
    with running_nodes(toy_folder("llama"), ranges(0, 2), limits=StoreLimits(max_sessions=2)) as (node,):
        hold, running = threading.Event(), threading.Event()
        node._engine.submit(lambda: (running.set(), hold.wait(10)))
        assert running.wait(5)
        threads = [threading.Thread(target=node.forward, args=(StepHeaders(), Payload(hidden(2)))) for _ in range(2)]
        for thread in threads:
            thread.start()
        wait_until(lambda: node._stateless_slots._value == 0, 5)
        with pytest.raises(Busy, match="stateless"):
            node.forward(StepHeaders(), Payload(hidden(2)))
        hold.set()
        for thread in threads:
            thread.join()
        assert node.forward(StepHeaders(), Payload(hidden(2))).hidden is not None


def test_d08_sessions_expire_without_traffic_and_the_sweeper_survives_a_failure(toy_folder: Any) -> None:
    limits = StoreLimits(ttl_seconds=0.2)
    with running_nodes(toy_folder("llama"), ranges(0, 2), limits=limits, sweep_seconds=0.02) as (node,):
        sweep = node._store.sweep
        failed = threading.Event()

        def fail_once() -> None:
            node._store.sweep = sweep  # type: ignore[method-assign]
            failed.set()
            raise RuntimeError("on purpose")

        node._store.sweep = fail_once  # type: ignore[method-assign]
        prefill(node)
        assert failed.wait(5)
        # Looking at the sessions would itself expire them: look at the bare table instead.
        wait_until(lambda: not node._store._entries, 5)
        assert node.sessions()["stats"]["evictions"]["ttl"] == 1


def test_eviction_takes_exactly_one_way_to_choose(nodes: list[NodeRuntime]) -> None:
    for choice in ({}, {"ids": [], "everything": True}, {"idle_longer_than": 1.0, "ids": []}):
        with pytest.raises(BadRequest, match="exactly one"):
            nodes[0].evict(**choice)  # type: ignore[arg-type]


def test_status_describes_the_shard(nodes: list[NodeRuntime]) -> None:
    status = nodes[1].status()
    assert (status["layers"], status["n_layers"], status["is_tail"]) == ("2:4", 4, True)
    assert (status["hidden_size"], status["vocab_size"], status["context_length"]) == (64, 320, 512)
    assert status["kv_bytes_per_token"] == 2 * 2 * 2 * 16 * 4
    assert status["rss_bytes"] > 10_000_000
    assert nodes[0].status()["boot_id"] != status["boot_id"]


def test_the_body_limit_admits_the_longest_prompt(nodes: list[NodeRuntime]) -> None:
    from nodes import framing

    longest = framing.encode(Payload(torch.zeros(1, 512, 64), torch.zeros(1, 512, dtype=torch.int64)))
    assert len(longest) <= nodes[0].max_body_bytes < 4 * len(longest) + 2**20


def test_layers_of_a_part_of_the_shard_are_remembered_with_the_session(nodes: list[NodeRuntime]) -> None:
    node = nodes[0]
    session = mint_session_id()
    node.forward(StepHeaders(session, "prefill", None, 1, 2), Payload(hidden(5)))
    assert node.sessions()["sessions"][0]["layers"] == str(LayerRange(1, 2))
    with pytest.raises(KVCacheMiss) as miss:
        node.forward(StepHeaders(session, "decode", 5, 0, 2), Payload(hidden(1)))
    assert miss.value.extra["reason"] == "start_layer_mismatch"
    assert node.forward(StepHeaders(session, "decode", 5, 1, 2), Payload(hidden(1))).past_len == 6
