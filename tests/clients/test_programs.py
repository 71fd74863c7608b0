"""litellm, langchain-openai and Simon Willison's `llm`, each in a process of its own over the running mesh."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import ARGUMENTS, MESSAGES, ClientMesh, clients_only

pytestmark = clients_only


def said_by_openai(mesh: ClientMesh, **options: Any) -> Any:
    return mesh.client.chat.completions.create(
        **{"model": mesh.model, "messages": MESSAGES, "max_tokens": 6, "temperature": 0, **options}
    )


def printed(mesh: ClientMesh, program: str, **environ: str) -> dict[str, Any]:
    done = mesh.run(program, **environ)
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


# -- litellm


@pytest.fixture(scope="module")
def litellm(client_mesh: ClientMesh) -> dict[str, Any]:
    return printed(client_mesh, "litellm_calls", limited=client_mesh.new_key(tokens_per_day=1))


def test_litellm_gets_text_usage_and_streams(client_mesh: ClientMesh, litellm: dict[str, Any]) -> None:
    expected = said_by_openai(client_mesh)
    assert litellm["text"] == litellm["streamed"] == expected.choices[0].message.content
    assert litellm["finish_reason"] == "length"
    for usage in (litellm["usage"], litellm["streamed_usage"]):
        assert usage["prompt_tokens"] == expected.usage.prompt_tokens
        assert usage["completion_tokens"] == 6


def test_litellm_calls_tools_and_continues_plain_text(litellm: dict[str, Any]) -> None:
    finish_reason, call = litellm["call"]
    assert finish_reason == "tool_calls"
    assert (call["name"], json.loads(call["arguments"])) == ("get_weather", ARGUMENTS)
    assert litellm["completion"]


def test_litellm_tells_errors_apart(litellm: dict[str, Any]) -> None:
    assert litellm["wrong_key"]["kind"] == "AuthenticationError"
    assert litellm["wrong_model"]["kind"] == "NotFoundError"
    assert litellm["wrong_value"]["kind"] == "BadRequestError"
    assert litellm["too_long"]["kind"] == "ContextWindowExceededError"
    assert litellm["limited"]["kind"] == "RateLimitError"


# -- langchain-openai


@pytest.fixture(scope="module")
def langchain(client_mesh: ClientMesh) -> dict[str, Any]:
    return printed(client_mesh, "langchain_calls")


def test_langchain_gets_text_usage_and_streams(client_mesh: ClientMesh, langchain: dict[str, Any]) -> None:
    expected = said_by_openai(client_mesh)
    text = expected.choices[0].message.content
    assert langchain["text"] == langchain["later"] == langchain["streamed"] == text
    assert langchain["finish_reason"] == "length"
    (streamed,) = langchain["streamed_usage"]
    for usage in (langchain["usage"], streamed):
        assert usage["total_tokens"] == expected.usage.total_tokens
        assert usage["output_tokens"] == 6


def test_langchain_calls_tools(langchain: dict[str, Any]) -> None:
    assert langchain["calls"] == [{"name": "get_weather", "args": ARGUMENTS}]


def test_langchain_tells_errors_apart(langchain: dict[str, Any]) -> None:
    assert langchain["wrong_key"] == "AuthenticationError invalid_api_key"
    assert langchain["wrong_model"] == "NotFoundError model_not_found"
    assert langchain["wrong_value"] == "BadRequestError invalid_value"
    assert langchain["too_long"] == "BadRequestError context_length_exceeded"


# -- llm

MODELS = """\
- model_id: toy
  model_name: {model}
  api_base: {url}
  api_key_name: meshnet
- model_id: toy-plain
  model_name: {model}
  api_base: {url}
  api_key_name: meshnet
  completion: true
- model_id: nobody
  model_name: nobody
  api_base: {url}
  api_key_name: meshnet
"""


@pytest.fixture(scope="module")
def llm(client_mesh: ClientMesh, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[int, str]]:
    """`llm -m … prompt`: its exit status and what it printed, errors last."""
    folder: Path = tmp_path_factory.mktemp("llm")
    (folder / "extra-openai-models.yaml").write_text(MODELS.format(model=client_mesh.model, url=client_mesh.url))
    (folder / "keys.json").write_text(json.dumps({"meshnet": client_mesh.key}))

    def run(*arguments: str) -> tuple[int, str]:
        done = client_mesh.run("llm", *arguments, MESSAGES[0]["content"], LLM_USER_PATH=str(folder), HOME=str(folder))
        return done.returncode, done.stdout + done.stderr

    return run


def test_llm_prints_the_text_streamed_and_whole(client_mesh: ClientMesh, llm: Callable[..., tuple[int, str]]) -> None:
    expected = str(said_by_openai(client_mesh).choices[0].message.content)
    short = ("-m", "toy", "-o", "max_tokens", "6", "-o", "temperature", "0")
    assert llm(*short) == (0, f"{expected}\n")
    assert llm(*short, "--no-stream") == (0, f"{expected}\n")


def test_llm_says_what_it_used(client_mesh: ClientMesh, llm: Callable[..., tuple[int, str]]) -> None:
    used = said_by_openai(client_mesh).usage.prompt_tokens
    status, text = llm("-m", "toy", "-o", "max_tokens", "6", "--usage")
    assert status == 0
    assert f"{used} input, 6 output" in text


def test_llm_continues_plain_text(llm: Callable[..., tuple[int, str]]) -> None:
    status, text = llm("-m", "toy-plain", "-o", "max_tokens", "6")
    assert status == 0
    assert text.strip()


def test_llm_says_what_is_wrong(llm: Callable[..., tuple[int, str]]) -> None:
    status, text = llm("-m", "nobody")
    assert status == 1
    assert "model_not_found" in text or "not served" in text
    status, text = llm("-m", "toy", "--key", "wrong")
    assert status == 1
    assert "not valid" in text
