"""The real `openai` client against a server over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from generation.answer import Finished, Silence, TextDelta
from generation.errors import ContextLengthExceeded
from generation.models import APIKey
from nodes.errors import Busy, NodeTimeout

from .conftest import MODEL, FakeHead

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
        client.chat.completions.create(model=MODEL, messages=MESSAGES, n=2)
    assert (caught.value.param, caught.value.code) == ("n", "unsupported_parameter")


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
