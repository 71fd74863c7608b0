"""Answers over a real sharded toy model in this process, with a real database row."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from django.db import DatabaseError

from generation import answer as answers
from generation.answer import ChatRequest, CompletionRequest, Finished, TextDelta
from generation.directory import NodeDirectory
from generation.errors import Cancelled, ContextLengthExceeded, ModelNotFound, NoRoute, RequestRefused
from generation.job import LoopSettings
from generation.models import Generation
from generation.prompt import Prompter
from generation.runtime import HeadRuntime
from nodes.errors import Draining, MeshnetError
from nodes.runtime import NodeRuntime
from nodes.shard import Embedder
from tests.meshes import FINGERPRINT, local_clients, ranges, running_nodes
from tests.processes import wait_until
from tests.toys import EOS, byte_tokenizer, reference_ids

# The loop's thread writes the row's end over a connection of its own.
pytestmark = pytest.mark.django_db(transaction=True)

MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def nodes(toy_folder: Any) -> Iterator[list[NodeRuntime]]:
    with running_nodes(toy_folder("llama"), ranges(0, 2, 4)) as running:
        yield running


@pytest.fixture
def head(toy_folder: Any, nodes: list[NodeRuntime]) -> HeadRuntime:
    return make_head(toy_folder("llama"), nodes)


def make_head(folder: Any, nodes: list[NodeRuntime]) -> HeadRuntime:
    embedder = Embedder.load(folder)
    return HeadRuntime(
        "toy",
        Prompter(byte_tokenizer(), context_length=512, stop_ids=[EOS], default_max_tokens=30),
        embedder,
        LoopSettings(FINGERPRINT, "float32", 4, 320, 512),
        NodeDirectory(local_clients(nodes)),
    )


def request(**options: Any) -> ChatRequest:
    return ChatRequest(**{"model": "toy", "messages": MESSAGES, "temperature": 0.0, "max_tokens": 20, **options})


def start(head: HeadRuntime, **options: Any) -> answers.Answer:
    return answers.start(head, request(**options), api_key=None, streamed=False)


def finish(answer: answers.Answer) -> tuple[str, Finished]:
    *deltas, end = answer.events()
    answer.join(10)
    assert isinstance(end, Finished)
    assert all(isinstance(delta, TextDelta) and delta.text for delta in deltas)
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)), end


def test_the_pieces_joined_are_the_text_of_the_whole_model(head: HeadRuntime, toy_reference: Any) -> None:
    text, end = finish(start(head))
    ids = reference_ids(toy_reference("llama"), head.prompter.ids(MESSAGES), 20)
    assert text == byte_tokenizer().decode(ids)
    assert (end.reason, end.completion_tokens) == ("length", 20)
    assert end.prompt_tokens == len(head.prompter.ids(MESSAGES))


def test_the_row_says_how_it_went(head: HeadRuntime) -> None:
    finish(start(head))
    row = Generation.objects.get()
    assert (row.status, row.finish_reason, row.completion_tokens, row.prefills) == ("done", "length", 20, 1)
    assert row.owner == head.boot_id
    assert [hop["start"] for hop in row.route] == [0, 2]
    assert row.finished_at is not None and row.finished_at >= row.started_at


def test_a_cancelled_answer_ends_and_frees_every_node(head: HeadRuntime, nodes: list[NodeRuntime]) -> None:
    answer = start(head, max_tokens=400)
    events = answer.events()
    next(events)
    answer.cancel()
    assert not any(isinstance(event, Finished) for event in events)
    wait_until(lambda: not any(node.sessions()["sessions"] for node in nodes), 5)
    answer.join(10)
    row = Generation.objects.get()
    assert row.status == "cancelled"
    assert 0 < row.completion_tokens < 400


def test_a_client_that_goes_while_it_waits_for_a_slot_is_noticed(head: HeadRuntime) -> None:
    gone = threading.Event()
    gone.set()
    with pytest.raises(Cancelled):
        answers.start(head, request(), api_key=None, streamed=True, client_gone=gone.is_set)
    wait_until(lambda: Generation.objects.get().status == "cancelled", 5)


def test_one_that_a_leaving_head_ends_before_it_began_may_be_asked_for_elsewhere(head: HeadRuntime) -> None:
    def leave() -> bool:
        stopping = threading.Thread(target=head.stop, kwargs={"timeout": 0.0})
        stopping.start()
        stopping.join()
        return False

    with pytest.raises(Draining) as raised:
        answers.start(head, request(), api_key=None, streamed=True, client_gone=leave)
    assert raised.value.retry_after
    wait_until(lambda: Generation.objects.get().status == "cancelled", 5)


def test_what_cannot_be_served_is_refused_before_anything_is_recorded(head: HeadRuntime) -> None:
    for error, options in (
        (ModelNotFound, {"model": "other"}),
        (ContextLengthExceeded, {"max_tokens": 10_000}),
        (RequestRefused, {"messages": [{"no": "role"}], "model": "other"}),
    ):
        with pytest.raises(error):
            start(head, **options)
    assert not Generation.objects.exists()


def test_a_mesh_with_a_gap_is_said_before_the_answer_starts(toy_folder: Any, nodes: list[NodeRuntime]) -> None:
    with pytest.raises(NoRoute):
        start(make_head(toy_folder("llama"), nodes[:1]))
    row = wait_until(lambda: Generation.objects.exclude(status="running").first(), 5)
    assert row.status == "failed"
    assert row.error.startswith("no_route: ")


def test_a_failure_in_the_middle_is_raised_from_the_events_and_recorded(head: HeadRuntime) -> None:
    answer = start(head, max_tokens=400)
    events = answer.events()
    next(events)
    broken = answer._loop._directory.clients[1]

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError("on purpose")

    broken.forward = fail  # type: ignore[method-assign]
    with pytest.raises(MeshnetError, match="log"):
        list(events)
    answer.join(10)
    assert Generation.objects.get().status == "failed"


def test_f05_a_database_that_fails_costs_the_row_and_not_the_answer(
    head: HeadRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: Any) -> None:
        raise DatabaseError("on purpose")

    monkeypatch.setattr(Generation.objects, "create", fail)
    assert finish(start(head))[1].completion_tokens == 20
    assert not Generation.objects.exists()


def test_the_database_is_written_twice_however_long_the_answer(
    head: HeadRuntime, django_assert_num_queries: Any
) -> None:
    for tokens in (5, 100):
        with django_assert_num_queries(1):
            # The end is written by the loop's thread, over a connection that this one does not count.
            answer = start(head, max_tokens=tokens)
        finish(answer)
        assert Generation.objects.latest("pk").completion_tokens == tokens


def test_a_seed_is_minted_when_none_is_given(head: HeadRuntime) -> None:
    made = [start(head, temperature=1.0, max_tokens=1) for _ in range(3)]
    made.append(start(head, temperature=1.0, max_tokens=1, seed=7))
    for answer in made:
        finish(answer)
    assert len({answer.job.sampling.seed for answer in made}) == 4
    assert made[-1].job.sampling.seed == 7


def test_e04_the_answers_id_is_not_the_sessions(head: HeadRuntime) -> None:
    answer = start(head)
    assert answer.job.session_id not in answer.id
    finish(answer)


# -- what the metrics say of it


def counted(head: HeadRuntime) -> dict[str, float]:
    """The head's counts by name and labels but the model's name."""
    return {
        sample.name.removeprefix("meshnet:")
        + "".join(f" {v}" for n, v in sample.labels.items() if n != "model_name"): (sample.value)
        for family in head.metrics.registry.collect()
        for sample in family.samples
    }


def test_a_finished_answer_is_counted_by_the_time_its_end_is_told(head: HeadRuntime) -> None:
    answer = start(head)
    for event in answer.events():
        if isinstance(event, Finished):
            samples = counted(head)  # at once: the row may not be written yet
    answer.join(10)
    assert samples["generation_tokens_total"] == 20
    assert samples["prompt_tokens_total"] == answer.prompt_tokens
    assert samples["request_success_total length"] == 1
    assert samples["inter_token_latency_seconds_count"] == 19
    assert (samples["num_requests_running"], samples["num_requests_waiting"]) == (0, 0)
    assert samples["hop_steps_total local:0"] == samples["hop_steps_total local:1"] == 20
    assert (samples["reprefill_total"], samples["failover_total"]) == (0, 0)


def test_an_answer_under_way_counts_as_running(head: HeadRuntime) -> None:
    answer = start(head, max_tokens=400)
    assert counted(head)["num_requests_running"] == 1
    answer.cancel()
    assert not [event for event in answer.events() if isinstance(event, Finished)]
    answer.join(10)
    samples = counted(head)
    assert samples["num_requests_running"] == 0
    assert samples["request_success_total abort"] == 1


def test_one_in_line_counts_as_waiting_also_in_the_middle_of_its_answer(head: HeadRuntime) -> None:
    answer = start(head, max_tokens=400)
    head.line.enter(answer._loop)  # as after another one took its slots
    samples = counted(head)
    head.line.leave(answer._loop)
    answer.cancel()
    answer.join(10)
    assert (samples["num_requests_running"], samples["num_requests_waiting"]) == (0, 1)


def test_an_evicted_answer_counts_one_re_prefill(head: HeadRuntime, nodes: list[NodeRuntime]) -> None:
    answer = start(head, max_tokens=60)
    nodes[0].evict(everything=True)
    finish(answer)
    assert counted(head)["reprefill_total"] == 1


def test_b05_a_stop_string_ends_the_text_and_no_further_step_is_made(
    head: HeadRuntime, nodes: list[NodeRuntime]
) -> None:
    whole, _ = finish(start(head))
    stop = whole[8:11]
    cut = whole.index(stop)
    before = [node.status()["work"]["steps"]["decode"] for node in nodes]
    text, end = finish(start(head, stop=(stop,)))
    assert (text, end.reason) == (whole[:cut], "stop")
    assert 0 < end.completion_tokens < 20
    after = [node.status()["work"]["steps"]["decode"] for node in nodes]
    assert [b - a for a, b in zip(before, after, strict=True)] == [end.completion_tokens - 1] * 2
    wait_until(lambda: not any(node.sessions()["sessions"] for node in nodes), 5)
    assert Generation.objects.latest("pk").finish_reason == "stop"


def test_text_that_only_looks_like_a_stop_string_is_not_lost(head: HeadRuntime) -> None:
    whole, _ = finish(start(head))
    text, end = finish(start(head, stop=(whole[-3:] + "never", whole[4:7] + "neither")))
    assert (text, end.reason) == (whole, "length")


def test_log_probabilities_are_the_whole_models_for_every_token(head: HeadRuntime, toy_reference: Any) -> None:
    answer = start(head, logprobs=3)
    *deltas, end = answer.events()
    assert isinstance(end, Finished)
    scores = [score for event in (*deltas, end) for score in getattr(event, "tokens", ())]
    prompt = head.prompter.ids(MESSAGES)
    ids = reference_ids(toy_reference("llama"), prompt, 20)
    assert [score.token_id for score in scores] == ids
    with torch.inference_mode():
        logits = toy_reference("llama")(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1].float()
    expected = torch.log_softmax(logits, dim=-1)
    for score, row in zip(scores, expected, strict=True):
        assert score.logprob == pytest.approx(float(row[score.token_id]), abs=1e-4)
        best = torch.topk(row, 3)
        assert [token_id for token_id, _ in score.top] == best.indices.tolist()
        assert [value for _, value in score.top] == pytest.approx(best.values.tolist(), abs=1e-4)


def test_without_being_asked_for_no_log_probabilities_travel(head: HeadRuntime) -> None:
    assert all(not getattr(event, "tokens", ()) for event in start(head).events())


def test_a_completion_goes_on_with_the_text_or_its_ids(head: HeadRuntime, toy_reference: Any) -> None:
    text = "Once upon"
    ids = head.prompter.text_ids(text)
    expected = byte_tokenizer().decode(reference_ids(toy_reference("llama"), ids, 12))
    for prompt in (text, tuple(ids)):
        wanted = CompletionRequest(model="toy", prompt=prompt, temperature=0.0, max_tokens=12)
        found, end = finish(answers.start(head, wanted, api_key=None, streamed=False))
        assert (found, end.prompt_tokens) == (expected, len(ids))


@pytest.mark.parametrize("prompt", ["", (), (320,), (-1,)])
def test_a_prompt_that_is_none_is_refused(head: HeadRuntime, prompt: Any) -> None:
    with pytest.raises(RequestRefused) as refused:
        answers.start(head, CompletionRequest(model="toy", prompt=prompt), api_key=None, streamed=False)
    assert refused.value.param == "prompt"


def test_a_bias_for_a_token_that_the_model_does_not_have_is_refused(head: HeadRuntime) -> None:
    with pytest.raises(RequestRefused) as refused:
        start(head, logit_bias=((320, 1.0),))
    assert refused.value.param == "logit_bias"


def test_a_banned_token_never_comes_and_a_wanted_one_always(head: HeadRuntime) -> None:
    def ids(**options: Any) -> list[int]:
        return [score.token_id for event in start(head, logprobs=0, **options).events() for score in event.tokens]  # type: ignore[union-attr]

    banned = ids()[0]
    assert banned not in ids(logit_bias=((banned, -100.0),))
    (wanted,) = byte_tokenizer().encode("~", add_special_tokens=False)
    assert finish(start(head, logit_bias=((wanted, 100.0),)))[0] == "~" * 20


def test_several_answers_of_one_seed_differ_and_each_repeats(head: HeadRuntime) -> None:
    texts = [finish(start(head, temperature=1.0, seed=5, choice=choice))[0] for choice in (0, 1, 0)]
    assert texts[0] == texts[2] != texts[1]
