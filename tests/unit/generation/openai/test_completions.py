"""POST /v1/completions: plain text that is continued."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from generation.answer import Finished, Silence, TextDelta
from generation.errors import RequestRefused
from generation.openai.completions import CompletionCall, read_completion
from generation.openai.shared_fields import Served
from nodes.errors import Busy, NodeTimeout

from .conftest import COMPLETION, MODEL, VOCAB, FakeHead, assert_is_error
from .test_streaming import events

Post = Callable[..., Any]
PATH = "/v1/completions"
PROMPT = COMPLETION["prompt"]
IDS = tuple(map(ord, PROMPT))


@pytest.fixture
def complete(post: Post) -> Post:
    def complete(*, path: str = PATH, **fields: Any) -> Any:
        return post({**COMPLETION, **fields}, path=path)

    return complete


def read(**fields: Any) -> CompletionCall:
    return read_completion({**COMPLETION, **fields}, Served(vocab_size=VOCAB, most_choices=8))


def refused(**fields: Any) -> RequestRefused:
    with pytest.raises(RequestRefused) as caught:
        read(**fields)
    assert caught.value.http_status == 400
    return caught.value


def chunk(like: dict[str, Any], index: int, text: str, finish_reason: str | None = None) -> dict[str, Any]:
    choice = {"text": text, "index": index, "logprobs": None, "finish_reason": finish_reason}
    return {**like, "choices": [choice]}


# -- shapes


@pytest.mark.parametrize("path", [PATH, f"{PATH}/"])
def test_an_answer_has_the_exact_shape(complete: Post, path: str) -> None:
    body = complete(path=path).json()
    assert body.pop("id").startswith("cmpl-")
    assert body.pop("system_fingerprint").startswith("fp_")
    usage = body.pop("usage")
    assert body == {
        "object": "text_completion",
        "created": 1_700_000_001,
        "model": MODEL,
        "choices": [{"text": "Paris.", "index": 0, "logprobs": None, "finish_reason": "stop"}],
    }
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (7, 2, 9)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0


def test_a_stream_has_the_exact_shape(complete: Post, head: FakeHead) -> None:
    chunks = events(complete(stream=True).getvalue())
    like = {**chunks[0], "object": "text_completion", "created": 1_700_000_001, "model": MODEL}
    assert set(like) == {"id", "object", "created", "model", "system_fingerprint", "choices"}
    assert chunks == [chunk(like, 0, "Par"), chunk(like, 0, "is."), chunk(like, 0, "", "stop"), "[DONE]"]
    assert head.asked[0]["streamed"] is True


def test_c01_usage_is_one_more_chunk_when_asked_for(complete: Post, head: FakeHead) -> None:
    head.script = (TextDelta("a"), Silence(), Finished("length", 7, 1))
    content = complete(stream=True, stream_options={"include_usage": True}).getvalue()
    *before, usage, done = events(content)
    assert (usage["choices"], usage["usage"]["total_tokens"], done) == ([], 8, "[DONE]")
    assert before.pop(1) == ": keep-alive"
    assert all(one["usage"] is None and one["choices"] for one in before)


def test_an_error_in_mid_stream_is_one_event_and_then_the_end(complete: Post, head: FakeHead) -> None:
    head.script = (TextDelta("Par"), NodeTimeout())
    content = complete(stream=True).getvalue()
    *_, last = events(content)
    assert last["error"]["code"] == "node_timeout"
    assert b"[DONE]" not in content


def test_an_error_after_work_was_done_tells_clients_not_to_repeat_it(complete: Post, head: FakeHead) -> None:
    head.script = (TextDelta("Par"), Busy())
    response = complete()
    assert_is_error(response, 503, "busy")
    assert response.headers["x-should-retry"] == "false"
    assert "Retry-After" not in response.headers


@pytest.mark.parametrize("method", ["get", "put", "delete", "patch", "options"])
def test_other_methods_are_a_405(head: FakeHead, key: str, method: str) -> None:
    response = getattr(Client(), method)(PATH, headers={"Authorization": f"Bearer {key}"})
    assert_is_error(response, 405, "method_not_allowed")


def test_a_key_is_needed(head: FakeHead, db: None) -> None:
    assert_is_error(Client().post(PATH, data=b"{}", content_type="application/json"), 401, "invalid_api_key")


# -- prompts


@pytest.mark.parametrize(
    "prompt, ids",
    [
        ("ab", [(97, 98)]),
        (["ab", "c"], [(97, 98), (99,)]),
        ([97, 98], [(97, 98)]),
        ([[97, 98], [0], [VOCAB - 1]], [(97, 98), (0,), (VOCAB - 1,)]),
        (["ab"], [(97, 98)]),
    ],
    ids=repr,
)
def test_prompts_of_every_form_are_generated_from(
    complete: Post, head: FakeHead, prompt: Any, ids: list[tuple[int, ...]]
) -> None:
    body = complete(prompt=prompt).json()
    assert [one["request"].prompt for one in head.asked] == ids
    assert [choice["index"] for choice in body["choices"]] == list(range(len(ids)))


def test_each_prompt_gets_n_answers_in_its_order(complete: Post, head: FakeHead) -> None:
    head.scripts = [(TextDelta(text), Finished("stop", 1, 1)) for text in ("a0", "a1", "b0", "b1")]
    body = complete(prompt=["a", "b"], n=2).json()
    assert [choice["text"] for choice in body["choices"]] == ["a0", "a1", "b0", "b1"]
    assert [(one["request"].prompt, one["request"].choice) for one in head.asked] == [
        ((97,), 0),
        ((97,), 1),
        ((98,), 2),
        ((98,), 3),
    ]
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (2, 4)


@pytest.mark.parametrize(
    "prompt",
    [
        *([], [""], [[]], ["a", 5], [5, "a"], [[5], 5], [5, [5]], [True], [1.0], [None], ["a", None], [[True]]),
        *([VOCAB], [-1], [[1], [VOCAB]], [2**70], 5, {}, True, [[[1]]]),
    ],
    ids=repr,
)
def test_other_prompts_are_refused(complete: Post, head: FakeHead, prompt: Any) -> None:
    response = complete(prompt=prompt)
    assert_is_error(response, 400, response.json()["error"]["code"], "prompt")
    assert head.asked == []


def test_an_empty_prompt_is_refused_where_it_gives_no_token(complete: Post) -> None:
    assert_is_error(complete(prompt=""), 400, "invalid_value", "prompt")


def test_prompts_times_n_are_held_to_the_limit_of_choices() -> None:
    assert len(read(prompt=["a"] * 4, n=2).requests) == 4
    assert refused(prompt=["a"] * 5, n=2).param == "prompt"
    assert refused(prompt=["a"] * 9).param == "prompt"


def test_c06_no_answer_is_begun_when_one_prompt_is_too_long(complete: Post, head: FakeHead) -> None:
    assert_is_error(complete(prompt=["short", "x" * 65]), 400, "context_length_exceeded", "prompt")
    assert_is_error(complete(prompt="x" * 60, max_tokens=5), 400, "context_length_exceeded", "max_tokens")
    assert head.asked == []


@pytest.mark.parametrize("length, asked, limit", [(10, None, 16), (60, None, 4), (10, 40, 40), (60, 4, 4)])
def test_without_a_limit_there_are_16_tokens_or_what_still_fits(
    complete: Post, head: FakeHead, length: int, asked: int | None, limit: int
) -> None:
    assert complete(prompt="x" * length, max_tokens=asked).status_code == 200
    assert head.request.max_tokens == limit


# -- fields of its own


def test_the_prompt_is_echoed_before_the_text(complete: Post, head: FakeHead) -> None:
    assert complete(echo=True).json()["choices"][0]["text"] == f"{PROMPT}Paris."
    assert complete(echo=True, prompt=[72, 105]).json()["choices"][0]["text"] == "HiParis."
    assert complete(echo=False).json()["choices"][0]["text"] == "Paris."


def test_in_a_stream_the_prompt_comes_first(complete: Post, head: FakeHead) -> None:
    content = complete(echo=True, prompt=["a", "b"], n=2, stream=True).getvalue()
    choices = [one["choices"][0] for one in events(content)[:-1]]
    assert [(choice["index"], choice["text"]) for choice in choices[:4]] == [(0, "a"), (1, "a"), (2, "b"), (3, "b")]
    for index, prompt in enumerate("aabb"):
        assert "".join(choice["text"] for choice in choices if choice["index"] == index) == f"{prompt}Paris."


def test_prompts_have_no_log_probabilities() -> None:
    error = refused(echo=True, logprobs=0)
    assert (error.param, error.code) == ("echo", "unsupported_parameter")


@pytest.mark.parametrize("fields", [{"best_of": 1}, {"n": 3, "best_of": 3}, {"suffix": ""}, {"suffix": None}])
def test_values_that_change_nothing_pass(fields: dict[str, Any]) -> None:
    assert read(**fields) == read(n=fields.get("n"))


def test_what_is_not_supported_is_refused_by_name() -> None:
    for fields in ({"suffix": "x"}, {"best_of": 2}, {"n": 2, "best_of": 3}):
        name = list(fields)[-1]
        assert (refused(**fields).param, refused(**fields).code) == (name, "unsupported_parameter")
    assert refused(n=2, best_of=1).code == "invalid_value"


@pytest.mark.parametrize("value", [0, -1])
def test_nothing_cannot_be_asked_for(value: int) -> None:
    assert refused(max_tokens=value).param == "max_tokens"


@pytest.mark.parametrize("value", [-1, 6, True, "2", 1.0])
def test_logprobs_are_0_to_5(value: Any) -> None:
    assert refused(logprobs=value).param == "logprobs"
    assert read(logprobs=5).requests[0].logprobs == 5


def test_every_way_to_sample_reaches_the_request(complete: Post, head: FakeHead) -> None:
    fields = {"temperature": 0.5, "top_p": 0.9, "top_k": 3, "min_p": 0.1, "presence_penalty": 1.0}
    fields |= {"frequency_penalty": -1.0, "repetition_penalty": 1.5}
    complete(**fields, stop=["x"], logit_bias={"5": 1}, seed=7)
    assert {name: getattr(head.request, name) for name in fields} == fields
    assert (head.request.stop, head.request.logit_bias, head.request.seed) == (("x",), ((5, 1.0),), 7)
