from __future__ import annotations

from typing import Any

import pytest

from generation.errors import RequestRefused
from generation.openai.messages import read_messages


def refused(messages: Any) -> RequestRefused:
    with pytest.raises(RequestRefused) as caught:
        read_messages(messages)
    assert caught.value.http_status == 400
    return caught.value


@pytest.mark.parametrize(
    "role, seen",
    [
        ("system", "system"),
        ("developer", "system"),
        ("user", "user"),
        ("assistant", "assistant"),
        ("tool", "tool"),
        ("function", "tool"),
    ],
)
def test_templates_see_the_roles_that_they_know(role: str, seen: str) -> None:
    assert read_messages([{"role": role, "content": "x"}]) == [{"role": seen, "content": "x"}]


def test_b09_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    assert read_messages([{"role": "user", "content": parts}]) == read_messages([{"role": "user", "content": "Hello"}])


@pytest.mark.parametrize(
    "content, param",
    [
        ([{"type": "image_url", "image_url": {"url": "data:"}}], "messages[0].content[0].type"),
        ([{"type": "text", "text": "x"}, {"type": "input_audio"}], "messages[0].content[1].type"),
        ([{"type": "text"}], "messages[0].content[0].text"),
        ([{"type": "text", "text": None}], "messages[0].content[0].text"),
        ([{"text": "x"}], "messages[0].content[0]"),
        (["x"], "messages[0].content[0]"),
        ([None], "messages[0].content[0]"),
        ([], "messages[0].content"),
        (5, "messages[0].content"),
        (True, "messages[0].content"),
        ({"type": "text", "text": "x"}, "messages[0].content"),
    ],
    ids=repr,
)
def test_b09_other_content_is_refused_by_name(content: Any, param: str) -> None:
    assert refused([{"role": "user", "content": content}]).param == param


def test_b09_an_image_is_named_in_the_message() -> None:
    assert "image_url" in refused([{"role": "user", "content": [{"type": "image_url"}]}]).detail


@pytest.mark.parametrize("message", [{"role": "assistant", "content": None}, {"role": "assistant"}])
def test_c04_an_assistant_without_content_said_nothing(message: dict[str, Any]) -> None:
    assert read_messages([message]) == [{"role": "assistant", "content": ""}]


@pytest.mark.parametrize("role", ["user", "system", "developer", "tool"])
@pytest.mark.parametrize("message", [{"content": None}, {}])
def test_c04_every_other_message_needs_content(role: str, message: dict[str, Any]) -> None:
    assert refused([{"role": role, **message}]).param == "messages[0].content"


def test_c04_a_history_with_tool_calls_keeps_them_as_templates_read_them() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    history = [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
    ]
    assert read_messages(history) == [
        {"role": "user", "content": "1+1?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}],
        },
        {"role": "tool", "content": "2", "tool_call_id": "c1"},
    ]


@pytest.mark.parametrize(
    "calls",
    [
        "x",
        [5],
        [{}],
        [{"function": {}}],
        [{"function": {"name": "f", "arguments": "[1"}}],
        [{"function": {"name": "f", "arguments": "[1]"}}],
        [{"function": {"name": "f", "arguments": "[" * 9999}}],
    ],
    ids=lambda calls: repr(calls)[:40],
)
def test_tool_calls_of_the_wrong_shape_are_refused_by_name(calls: Any) -> None:
    param = refused([{"role": "assistant", "content": None, "tool_calls": calls}]).param
    assert param is not None and param.startswith("messages[0].tool_calls")


def test_the_old_form_of_a_call_is_one_too() -> None:
    call = {"name": "add", "arguments": '{"a": 1}'}
    (read,) = read_messages([{"role": "assistant", "content": None, "function_call": call}])
    assert read["tool_calls"] == [
        {"id": "", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}},
    ]


@pytest.mark.parametrize("call", ["x", {}, {"name": 5}, {"name": "f", "arguments": "[1]"}], ids=repr)
def test_an_old_call_of_the_wrong_shape_is_refused_by_name(call: Any) -> None:
    param = refused([{"role": "assistant", "content": None, "function_call": call}]).param
    assert param is not None and param.startswith("messages[0].function_call")


@pytest.mark.parametrize("calls", [None, []])
def test_no_tool_calls_leave_no_trace(calls: Any) -> None:
    assert read_messages([{"role": "assistant", "content": "x", "tool_calls": calls}]) == [
        {"role": "assistant", "content": "x"}
    ]


@pytest.mark.parametrize("role", [None, "", "bot", "User", 5, ["user"], {}])
def test_an_unknown_role_is_refused_by_name(role: Any) -> None:
    assert refused([{"role": role, "content": "x"}]).param == "messages[0].role"


@pytest.mark.parametrize(
    "messages, param",
    [
        (None, "messages"),
        ([], "messages"),
        ("x", "messages"),
        ({}, "messages"),
        (["x"], "messages[0]"),
        ([{"role": "user", "content": "x"}, None], "messages[1]"),
        ([[]], "messages[0]"),
    ],
    ids=repr,
)
def test_what_is_no_list_of_messages_is_refused_by_name(messages: Any, param: str) -> None:
    assert refused(messages).param == param
