"""What is beyond a plain chat, through real processes with the real `openai` client."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.processes import wait_until
from tests.toy_mesh import ToyMesh

MESSAGES: list[Any] = [{"role": "user", "content": "Tell me about nodes."}]


def chat(mesh: ToyMesh, **options: Any) -> Any:
    return mesh.client.chat.completions.create(model=mesh.model.name, messages=MESSAGES, **options)


def complete(mesh: ToyMesh, **options: Any) -> Any:
    return mesh.client.completions.create(model=mesh.model.name, **options)


def test_choices_are_the_same_streamed_or_not_and_each_has_a_row(toy_mesh: ToyMesh) -> None:
    whole = chat(toy_mesh, n=3, seed=5, max_tokens=10)
    expected = [choice.message.content for choice in whole.choices]
    assert len(set(expected)) == 3
    rows = toy_mesh.rows()
    assert sum(row["completion_tokens"] for row in rows[:3]) == whole.usage.completion_tokens
    assert {row["prompt_tokens"] for row in rows[:3]} == {whole.usage.prompt_tokens}
    texts = ["", "", ""]
    for chunk in chat(toy_mesh, n=3, seed=5, max_tokens=10, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == expected
    assert len(toy_mesh.rows()) == len(rows) + 3


def test_d01_a_client_that_leaves_ends_every_choice(toy_mesh: ToyMesh) -> None:
    with chat(toy_mesh, n=3, max_tokens=400, logit_bias={"258": -100}, stream=True) as stream:
        seen = set()
        for chunk in stream:
            seen.add(chunk.choices[0].index if chunk.choices[0].delta.content else None)
            if {0, 1, 2} <= seen:
                break
    wait_until(toy_mesh.is_idle, 10, "sessions were left behind")
    assert {row["status"] for row in toy_mesh.rows()[:3]} == {"cancelled"}


def test_completions_of_several_prompts(toy_mesh: ToyMesh) -> None:
    options: dict[str, Any] = {"prompt": ["One", "Two"], "echo": True, "temperature": 0, "max_tokens": 8}
    whole = complete(toy_mesh, **options)
    assert [choice.text[:3] for choice in whole.choices] == ["One", "Two"]
    texts = ["", ""]
    for chunk in complete(toy_mesh, **options, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in whole.choices]


def test_log_probabilities_and_penalties_go_the_whole_way(toy_mesh: ToyMesh) -> None:
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 12, "logprobs": True, "top_logprobs": 1}
    plain = chat(toy_mesh, **options).choices[0].logprobs.content
    assert [entry.token for entry in plain] == [entry.top_logprobs[0].token for entry in plain]
    bent = chat(toy_mesh, **options, presence_penalty=2, frequency_penalty=2).choices[0].logprobs.content
    assert len(bent) == 12
    assert bent[0] == plain[0]  # nothing was said before the first token


def test_what_is_refused_is_refused_through_the_whole_head(toy_mesh: ToyMesh) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        complete(toy_mesh, prompt=["x", "x" * 10_000])
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")
    with pytest.raises(openai.BadRequestError) as caught:
        chat(toy_mesh, tools=[{"type": "function", "function": {"name": "f"}}])
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", "tools")
