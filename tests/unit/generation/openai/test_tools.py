"""Tools of a chat: what is offered to the model, and what its calls look like in the answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from generation.answer import Finished, TextDelta
from generation.errors import RequestRefused
from generation.openai.tools import MOST_TOOLS, read_tools

from .conftest import CHAT, FakeHead, assert_is_error
from .test_streaming import events

Post = Callable[..., Any]
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
WITH_TOOLS = {**CHAT, "tools": [TOOL]}
CALLS = (
    TextDelta("Let me look.\n<tool"),
    TextDelta('_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'),
    TextDelta('<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'),
    Finished("stop", 7, 30),
)


@pytest.fixture(autouse=True)
def model_with_tools(head: FakeHead) -> None:
    head.prompter.supports_tools = True


def read(takes_tools: bool = True, **body: Any) -> Any:
    return read_tools(body, takes_tools=takes_tools)


def refused(takes_tools: bool = True, **body: Any) -> RequestRefused:
    with pytest.raises(RequestRefused) as caught:
        read(takes_tools, **body)
    return caught.value


# -- the request


def test_tools_reach_the_template_as_they_are() -> None:
    assert read(tools=[TOOL]) == (TOOL,)
    assert read(tools=[TOOL], tool_choice="auto") == (TOOL,)


def test_what_templates_do_not_know_is_left_out() -> None:
    function = {**TOOL["function"], "strict": True, "made_up": 1}
    assert read(tools=[{"type": "function", "function": function, "id": "x"}]) == (TOOL,)
    bare = {"type": "function", "function": {"name": "f", "description": None, "parameters": None, "strict": None}}
    assert read(tools=[bare]) == ({"type": "function", "function": {"name": "f"}},)


@pytest.mark.parametrize("body", [{}, {"tools": None}, {"tools": []}, {"tools": [TOOL], "tool_choice": "none"}])
def test_no_tools_are_offered(body: dict[str, Any]) -> None:
    assert read(**body) == ()
    assert read(takes_tools=False, **body) == ()


def test_a_model_without_a_form_of_calls_takes_none() -> None:
    error = refused(takes_tools=False, tools=[TOOL])
    assert (error.param, error.code) == ("tools", "unsupported_parameter")


@pytest.mark.parametrize(
    "choice",
    ["required", {"type": "function", "function": {"name": "get_weather"}}, {"type": "allowed_tools"}, {}],
    ids=repr,
)
@pytest.mark.parametrize("tools", [[TOOL], None], ids=["tools", "none"])
def test_a_call_cannot_be_forced(choice: Any, tools: Any) -> None:
    error = refused(tools=tools, tool_choice=choice)
    assert (error.param, error.code) == ("tool_choice", "unsupported_parameter")


def test_a_choice_that_is_none_is_refused() -> None:
    assert refused(tools=[TOOL], tool_choice="always").param == "tool_choice"


@pytest.mark.parametrize(
    "tool, param",
    [
        ("x", "tools[1]"),
        ({}, "tools[1]"),
        ({"type": "custom", "custom": {"name": "x"}}, "tools[1].type"),
        ({"type": "function"}, "tools[1].function"),
        ({"type": "function", "function": {}}, "tools[1].function.name"),
        ({"type": "function", "function": {"name": ""}}, "tools[1].function.name"),
        ({"type": "function", "function": {"name": "a b"}}, "tools[1].function.name"),
        ({"type": "function", "function": {"name": "a" * 65}}, "tools[1].function.name"),
        ({"type": "function", "function": {"name": "f", "description": 5}}, "tools[1].function.description"),
        ({"type": "function", "function": {"name": "f", "parameters": "x"}}, "tools[1].function.parameters"),
        ({"type": "function", "function": {"name": "f", "strict": "x"}}, "tools[1].function.strict"),
    ],
    ids=lambda value: repr(value)[:50],
)
def test_a_tool_of_the_wrong_shape_is_named(tool: Any, param: str) -> None:
    assert refused(tools=[TOOL, tool]).param == param


def test_there_is_a_limit_of_tools() -> None:
    assert len(read(tools=[TOOL] * MOST_TOOLS)) == MOST_TOOLS
    assert refused(tools=[TOOL] * (MOST_TOOLS + 1)).param == "tools"


def test_c03_tools_for_a_model_that_has_none_are_a_400(post: Post, head: FakeHead) -> None:
    head.prompter.supports_tools = False
    assert_is_error(post(WITH_TOOLS), 400, "unsupported_parameter", "tools")
    assert head.asked == []


# -- the answer


def test_calls_stand_in_the_message_and_their_text_does_not(post: Post, head: FakeHead) -> None:
    head.script = CALLS
    (choice,) = post(WITH_TOOLS).json()["choices"]
    assert head.request.tools == (TOOL,)
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    first, second = message.pop("tool_calls")
    assert message == {"role": "assistant", "content": "Let me look.\n", "refusal": None}
    assert first["id"].startswith("call_") and first["id"] != second["id"]
    assert (first["type"], first["function"]["name"]) == ("function", "get_weather")
    assert json.loads(first["function"]["arguments"]) == {"city": "Paris"}
    assert second["function"] == {"name": "get_time", "arguments": "{}"}


def test_a_message_of_calls_alone_has_no_content(post: Post, head: FakeHead) -> None:
    head.script = CALLS[2:]
    assert post(WITH_TOOLS).json()["choices"][0]["message"]["content"] is None


def test_a_stream_has_each_call_in_one_event(post: Post, head: FakeHead) -> None:
    head.script = CALLS
    chunks = events(post({**WITH_TOOLS, "stream": True}).getvalue())
    assert chunks.pop() == "[DONE]"
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("content", "") for delta in deltas) == "Let me look.\n"
    calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert [(call["index"], call["function"]["name"]) for call in calls] == [(0, "get_weather"), (1, "get_time")]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-2:] == [None, "tool_calls"]
    assert deltas[-1] == {}


def test_an_answer_that_is_cut_in_a_call_is_text_and_its_end_the_length(post: Post, head: FakeHead) -> None:
    head.script = (TextDelta('<tool_call>\n{"name": "get_w'), Finished("length", 7, 5))
    (choice,) = post(WITH_TOOLS).json()["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "content": '<tool_call>\n{"name": "get_w',
        "refusal": None,
    }
    assert choice["finish_reason"] == "length"


@pytest.mark.parametrize("body", [CHAT, {**WITH_TOOLS, "tool_choice": "none"}], ids=["no tools", "none chosen"])
def test_without_tools_what_looks_like_a_call_is_text(post: Post, head: FakeHead, body: dict[str, Any]) -> None:
    head.script = CALLS
    (choice,) = post(body).json()["choices"]
    assert head.request.tools == ()
    assert "tool_calls" not in choice["message"]
    assert "<tool_call>" in choice["message"]["content"]
    assert choice["finish_reason"] == "stop"


def test_each_choice_has_its_own_calls(post: Post, head: FakeHead) -> None:
    head.scripts = [CALLS, (TextDelta("No."), Finished("stop", 7, 2))]
    first, second = post({**WITH_TOOLS, "n": 2}).json()["choices"]
    assert (first["finish_reason"], second["finish_reason"]) == ("tool_calls", "stop")
    assert second["message"] == {"role": "assistant", "content": "No.", "refusal": None}
