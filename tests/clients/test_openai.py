"""OpenAI's own client, with the retries that it makes by itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest

from tests.clients.conftest import ARGUMENTS, CALL_TEXT, CALLING, MESSAGES, MOST_ANSWERS, SAID, TOOL, ClientMesh
from tests.processes import wait_until


def chat(mesh: ClientMesh, client: openai.OpenAI | None = None, **options: Any) -> Any:
    return (client or mesh.client).chat.completions.create(
        **{"model": mesh.model, "messages": MESSAGES, "max_tokens": 6, "temperature": 0, **options}
    )


@contextmanager
def watching(mesh: ClientMesh, key: str = "", *, max_retries: int = 2) -> Iterator[tuple[openai.OpenAI, list[int]]]:
    """A client, and the statuses of all that was answered to it, also of what it tried again."""
    statuses: list[int] = []
    http = openai.DefaultHttpxClient(event_hooks={"response": [lambda answer: statuses.append(answer.status_code)]})
    with openai.OpenAI(base_url=mesh.url, api_key=key or mesh.key, max_retries=max_retries, http_client=http) as client:
        yield client, statuses


def test_a_chat_has_its_text_and_its_usage(client_mesh: ClientMesh) -> None:
    answer = chat(client_mesh)
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 6
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 6
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    assert answer.system_fingerprint


def test_a_stream_has_the_same_text_and_its_usage_at_the_end(client_mesh: ClientMesh) -> None:
    chunks = list(chat(client_mesh, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == chat(client_mesh).choices[0].message.content
    assert chunks[-1].usage.completion_tokens == 6


def test_the_clients_own_accumulator_of_a_stream(client_mesh: ClientMesh) -> None:
    with client_mesh.client.chat.completions.stream(model=client_mesh.model, messages=MESSAGES, **CALLING) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == SAID + CALL_TEXT  # no tool was offered, so that it is text
    assert final.choices[0].finish_reason == "stop"


def test_several_answers_with_log_probabilities(client_mesh: ClientMesh) -> None:
    answer = chat(client_mesh, n=2, logprobs=True, top_logprobs=3, temperature=1, seed=1)
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        assert len(choice.logprobs.content) == 6
        assert all(len(token.top_logprobs) == 3 and token.logprob <= 0 for token in choice.logprobs.content)


def test_a_tool_is_called_and_its_result_goes_back(client_mesh: ClientMesh) -> None:
    message = chat(client_mesh, tools=[TOOL], **CALLING).choices[0]
    assert message.finish_reason == "tool_calls"
    assert message.message.content == SAID
    (call,) = message.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", ARGUMENTS)
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    assert chat(client_mesh, tools=[TOOL], messages=[*MESSAGES, message.message, result]).choices[0].message.content


def test_a_tool_is_called_in_a_stream(client_mesh: ClientMesh) -> None:
    chunks = [chunk.choices[0] for chunk in chat(client_mesh, tools=[TOOL], stream=True, **CALLING)]
    (call,) = [call for choice in chunks for call in choice.delta.tool_calls or []]
    assert json.loads(call.function.arguments) == ARGUMENTS
    assert chunks[-1].finish_reason == "tool_calls"


def test_the_models(client_mesh: ClientMesh) -> None:
    (model,) = client_mesh.client.models.list()
    assert model.id == client_mesh.model
    assert client_mesh.client.models.retrieve(model.id).object == "model"


def test_completions_whole_and_streamed(client_mesh: ClientMesh) -> None:
    options: dict[str, Any] = {"model": client_mesh.model, "prompt": ["a", "b"], "max_tokens": 5, "temperature": 0}
    whole = client_mesh.client.completions.create(**options, echo=True)
    texts = ["", ""]
    for chunk in client_mesh.client.completions.create(**options, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert [choice.text for choice in whole.choices] == [f"a{texts[0]}", f"b{texts[1]}"]
    assert whole.usage is not None and whole.usage.completion_tokens == 10


def test_the_raw_response_has_the_request_id_and_the_limits_of_the_key(client_mesh: ClientMesh) -> None:
    with watching(client_mesh, client_mesh.new_key(requests_per_minute=5, tokens_per_day=1000)) as (client, _):
        raw = client.chat.completions.with_raw_response.create(
            model=client_mesh.model, messages=MESSAGES, max_tokens=2, extra_headers={"x-request-id": "mine-1"}
        )
    assert raw.headers["x-request-id"] == "mine-1"
    assert raw.headers["x-ratelimit-limit-requests"] == "5"
    assert raw.headers["x-ratelimit-remaining-requests"] == "4"
    assert raw.headers["x-ratelimit-limit-tokens"] == "1000"
    assert raw.parse()._request_id == "mine-1"


@pytest.mark.parametrize(
    "options, kind, code, param",
    [
        ({"model": "nobody"}, openai.NotFoundError, "model_not_found", "model"),
        ({"temperature": 3}, openai.BadRequestError, "invalid_value", "temperature"),
        ({"response_format": {"type": "json_object"}}, openai.BadRequestError, "unsupported_parameter", None),
        ({"max_tokens": 10_000}, openai.BadRequestError, "context_length_exceeded", "max_tokens"),
    ],
)
def test_errors_are_the_classes_that_programs_catch(
    client_mesh: ClientMesh, options: dict[str, Any], kind: type[openai.APIStatusError], code: str, param: str | None
) -> None:
    with watching(client_mesh) as (client, statuses), pytest.raises(kind) as caught:
        chat(client_mesh, client, **options)
    assert caught.value.code == code
    assert caught.value.param == param or param is None
    assert len(statuses) == 1


def test_a_wrong_key_is_an_authentication_error(client_mesh: ClientMesh) -> None:
    with watching(client_mesh, "wrong") as (client, statuses):
        with pytest.raises(openai.AuthenticationError) as caught:
            chat(client_mesh, client)
        assert caught.value.code == "invalid_api_key"
    assert statuses == [401]


@contextmanager
def full(mesh: ClientMesh) -> Iterator[Callable[..., None]]:
    """While as many answers are under way as the head takes; what it gives ends them."""
    with mesh.proxy.slowed(0.05):
        streams = [chat(mesh, stream=True, max_tokens=300) for _ in range(MOST_ANSWERS)]

        def end(*_: object) -> None:
            for stream in streams:
                stream.close()

        try:
            yield end
        finally:
            end()
    wait_until(mesh.is_idle)


def on_answers(client: openai.OpenAI, hook: Callable[..., object]) -> None:
    http: Any = client._client
    http.event_hooks = {"response": [*http.event_hooks["response"], hook]}


def test_a_full_head_is_tried_again_by_the_client_itself(client_mesh: ClientMesh) -> None:
    """503 with Retry-After. Room comes once the client was refused."""
    with watching(client_mesh) as (client, statuses), full(client_mesh) as end:
        on_answers(client, end)
        assert chat(client_mesh, client).choices[0].message.content
    assert statuses[0] == 503
    assert statuses[-1] == 200


def test_a_full_head_is_an_error_without_retries(client_mesh: ClientMesh) -> None:
    with (
        watching(client_mesh, max_retries=0) as (client, statuses),
        full(client_mesh),
        pytest.raises(openai.InternalServerError) as caught,
    ):
        chat(client_mesh, client)
    assert (caught.value.status_code, caught.value.code) == (503, "busy")
    assert caught.value.response.headers["retry-after"] == "1"
    assert statuses == [503]


def test_a_key_that_runs_all_it_may_is_tried_again_when_its_answer_has_ended(client_mesh: ClientMesh) -> None:
    """429 with Retry-After."""
    key = client_mesh.new_key(concurrent_generations=1)
    with watching(client_mesh, key) as (client, statuses), client_mesh.proxy.slowed(0.05):
        stream = chat(client_mesh, client, stream=True, max_tokens=300)
        on_answers(client, lambda _: stream.close())
        assert chat(client_mesh, client).choices[0].message.content
    assert statuses[:2] == [200, 429]
    assert statuses[-1] == 200


def test_a_key_that_has_used_up_its_day_is_not_tried_again(client_mesh: ClientMesh) -> None:
    """429 with x-should-retry: false."""
    with watching(client_mesh, client_mesh.new_key(tokens_per_day=1)) as (client, statuses):
        chat(client_mesh, client)

        def refused() -> openai.RateLimitError | None:
            """The tokens are counted when the row of the first answer ends, just after the answer."""
            try:
                chat(client_mesh, client)
            except openai.RateLimitError as error:
                return error
            return None

        error = wait_until(refused)
    assert error.code == "insufficient_quota"
    assert error.response.headers["x-should-retry"] == "false"
    assert statuses.count(429) == 1
