"""The real `openai` client against a server over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from generation.answer import Finished, Silence, TextDelta, TokenScore
from generation.errors import ContextLengthExceeded
from generation.models import APIKey
from nodes.errors import Busy, NodeTimeout

from .conftest import MODEL, PARIS, FakeHead
from .test_tools import CALLS, TOOL

MESSAGES: Any = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture
def served_key(transactional_db: None) -> str:
    _, key = APIKey.objects.create_key(name="client")
    return key


@pytest.fixture
def client(live_server: Any, head: FakeHead, served_key: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{live_server.url}/v1", api_key=served_key, max_retries=0) as client:
        yield client


def test_a_chat(client: OpenAI) -> None:
    completion = client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert completion.choices[0].message.content == "Paris."
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage is not None and completion.usage.total_tokens == 9
    assert completion._request_id


def test_a_stream_with_usage(client: OpenAI, head: FakeHead) -> None:
    head.script = (Silence(), TextDelta("Par"), Silence(), TextDelta("is."), Finished("length", 7, 2))
    with client.chat.completions.create(
        model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    ) as stream:
        chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "Paris."
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None, None, None, "length"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 2


def test_a_stream_through_the_clients_own_accumulator(client: OpenAI) -> None:
    with client.chat.completions.stream(model=MODEL, messages=MESSAGES) as stream:
        completion = stream.get_final_completion()
    assert completion.choices[0].message.content == "Paris."


def test_a_wrong_key_is_an_authentication_error(client: OpenAI) -> None:
    with pytest.raises(openai.AuthenticationError) as caught:
        client.with_options(api_key="wrong").chat.completions.create(model=MODEL, messages=MESSAGES)
    assert caught.value.code == "invalid_api_key"


def test_an_unknown_model_is_a_not_found_error(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-4o", messages=MESSAGES)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4o")


def test_a_bad_value_is_a_bad_request_error(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=3)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=MESSAGES, response_format={"type": "json_object"})
    assert (caught.value.param, caught.value.code) == ("response_format", "unsupported_parameter")


def test_a_prompt_that_is_too_long_is_a_bad_request_error(client: OpenAI, head: FakeHead) -> None:
    head.refusal = ContextLengthExceeded("Too long.", param="messages")
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
    assert caught.value.code == "context_length_exceeded"


def test_c02_an_error_in_mid_stream_is_raised_from_the_stream(client: OpenAI, head: FakeHead) -> None:
    head.script = (TextDelta("Par"), NodeTimeout())
    with client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True) as stream:
        assert next(stream).choices[0].delta.role == "assistant"
        assert next(stream).choices[0].delta.content == "Par"
        with pytest.raises(openai.APIError):
            next(stream)


def test_the_client_does_not_repeat_an_answer_that_broke_in_the_middle(client: OpenAI, head: FakeHead) -> None:
    head.script = (TextDelta("Par"), NodeTimeout())
    with pytest.raises(openai.InternalServerError):
        client.with_options(max_retries=2).chat.completions.create(model=MODEL, messages=MESSAGES)
    assert len(head.asked) == 1


def test_the_client_repeats_what_was_refused_before_anything_was_done(
    client: OpenAI, head: FakeHead, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    head.refusal = Busy()
    with pytest.raises(openai.InternalServerError) as caught:
        client.with_options(max_retries=2).chat.completions.create(model=MODEL, messages=MESSAGES)
    assert caught.value.code == "busy"
    assert len(head.asked) == 3


def test_the_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "meshnet"


# -- what else can be asked for


def test_several_choices(client: OpenAI, head: FakeHead) -> None:
    head.scripts = [PARIS, (TextDelta("Rome?"), Finished("length", 7, 3))]
    completion = client.chat.completions.create(model=MODEL, messages=MESSAGES, n=2)
    assert [choice.message.content for choice in completion.choices] == ["Paris.", "Rome?"]
    assert completion.system_fingerprint
    assert completion.usage is not None and completion.usage.prompt_tokens_details is not None
    assert completion.usage.prompt_tokens_details.cached_tokens == 0


def test_several_choices_through_the_clients_own_accumulator(client: OpenAI, head: FakeHead) -> None:
    head.scripts = [PARIS, (TextDelta("Rome?"), Finished("stop", 7, 3))]
    with client.chat.completions.stream(model=MODEL, messages=MESSAGES, n=2) as stream:
        completion = stream.get_final_completion()
    assert [choice.message.content for choice in completion.choices] == ["Paris.", "Rome?"]
    assert [choice.finish_reason for choice in completion.choices] == ["stop", "stop"]


def test_logprobs(client: OpenAI, head: FakeHead) -> None:
    score = TokenScore(97, -0.5, ((97, -0.5), (98, -1.5)))
    head.script = (TextDelta("a", (score,)), Finished("stop", 7, 1))
    completion = client.chat.completions.create(model=MODEL, messages=MESSAGES, logprobs=True, top_logprobs=2)
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None
    assert (logprobs.content[0].token, logprobs.content[0].bytes) == ("a", [97])
    assert [one.logprob for one in logprobs.content[0].top_logprobs] == [-0.5, -1.5]
    with client.chat.completions.stream(model=MODEL, messages=MESSAGES, logprobs=True, top_logprobs=2) as stream:
        assert stream.get_final_completion().choices[0].logprobs == logprobs


def test_calls_of_tools(client: OpenAI, head: FakeHead) -> None:
    head.prompter.supports_tools = True
    head.script = CALLS
    tools: Any = [TOOL]
    whole = client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=tools).choices[0]
    with client.chat.completions.stream(model=MODEL, messages=MESSAGES, tools=tools) as stream:
        streamed = stream.get_final_completion().choices[0]
    for choice in (whole, streamed):
        assert choice.finish_reason == "tool_calls"
        assert choice.message.tool_calls is not None
        calls: list[Any] = list(choice.message.tool_calls)
        assert [call.function.name for call in calls] == ["get_weather", "get_time"]
        assert json.loads(calls[0].function.arguments) == {"city": "Paris"}


def test_every_way_to_sample_is_taken(client: OpenAI, head: FakeHead) -> None:
    client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        stop=["\n"],
        presence_penalty=0.5,
        frequency_penalty=0.5,
        logit_bias={"5": -100},
        extra_body={"min_p": 0.1, "top_k": 5, "repetition_penalty": 1.1},
    )
    assert (head.request.stop, head.request.logit_bias) == (("\n",), ((5, -100.0),))
    assert (head.request.min_p, head.request.top_k, head.request.repetition_penalty) == (0.1, 5, 1.1)


def test_a_completion(client: OpenAI, head: FakeHead) -> None:
    head.script = (TextDelta("a", (TokenScore(97, -0.5, ((97, -0.5),)),)), Finished("length", 7, 1))
    completion = client.completions.create(model=MODEL, prompt=["x", "y"], n=2, logprobs=1)
    assert [choice.text for choice in completion.choices] == ["a"] * 4
    assert [choice.finish_reason for choice in completion.choices] == ["length"] * 4
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None and logprobs.top_logprobs == [{"a": -0.5}]
    assert completion.usage is not None and completion.usage.prompt_tokens == 14


def test_a_streamed_completion(client: OpenAI) -> None:
    options: Any = {"stream_options": {"include_usage": True}, "echo": True}
    with client.completions.create(model=MODEL, prompt="x", stream=True, **options) as stream:
        *chunks, usage = list(stream)
    assert "".join(chunk.choices[0].text for chunk in chunks) == "xParis."
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert usage.usage is not None and usage.usage.total_tokens == 9


def test_errors_of_completions_are_those_of_chats(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL, prompt="x", suffix="y")
    assert (caught.value.param, caught.value.code) == ("suffix", "unsupported_parameter")
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="gpt-4o", prompt="x")
