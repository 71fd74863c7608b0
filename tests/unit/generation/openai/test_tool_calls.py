from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from generation.openai import tool_calls
from generation.openai.tool_calls import ToolCall, ToolCallParser

WEATHER = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
TIME = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'


def parse(pieces: Iterable[str]) -> list[str | ToolCall]:
    """All events, text that follows text joined to it."""
    numbers = count()
    parser = ToolCallParser(mint=lambda: f"call_{next(numbers)}")
    events = [event for piece in pieces for event in parser.push(piece)]
    events += parser.flush()
    assert all(event for event in events), "no empty pieces"
    joined: list[str | ToolCall] = []
    for event in events:
        if isinstance(event, str) and joined and isinstance(joined[-1], str):
            joined[-1] += event
        else:
            joined.append(event)
    return joined


def weather(number: int = 0) -> ToolCall:
    return ToolCall(f"call_{number}", "get_weather", '{"city": "Paris"}')


def cuts(text: str) -> st.SearchStrategy[list[str]]:
    at = st.lists(st.integers(0, len(text)), max_size=12).map(sorted)
    return at.map(lambda at: [text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)])


def test_one_call_and_nothing_else() -> None:
    assert parse([WEATHER]) == parse(WEATHER) == [weather()]


def test_text_before_a_call_comes_first_and_at_once() -> None:
    parser = ToolCallParser()
    assert parser.push("Let me look.\n<tool") == ["Let me look.\n"]
    (call,) = parser.push(WEATHER.removeprefix("<tool"))
    assert isinstance(call, ToolCall) and call.name == "get_weather"
    assert parser.flush() == []


def test_several_calls_and_no_text_for_the_blanks_around_them() -> None:
    assert parse(f"\n\n{WEATHER}\n{TIME}\n") == [weather(), ToolCall("call_1", "get_time", "{}")]


def test_text_after_a_call_is_kept_with_its_blanks() -> None:
    assert parse(f"{WEATHER}\nDone. ") == [weather(), "\nDone. "]


def test_text_alone_is_untouched() -> None:
    for text in ("", "plain", "  \n", " a < b <tool_cal", "<tool>", "</tool_call>", "x<tool_call"):
        assert "".join(map(str, parse(text))) == text


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>\n{"name": "f", "arguments": {"a": 1}\n</tool_call> and more',
        "<tool_call>not JSON</tool_call>",
        "<tool_call></tool_call>",
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "not JSON"}</tool_call>',
        '<tool_call>[{"name": "f"}]</tool_call>',
        '<tool_call>{"name": "f", "argu',
        '<tool_call>{"name": "never closed, </tool_call> more',
        '<tool_call>{"a": ' + "[" * 100_000 + "</tool_call>",
        "<tool_call><function=f><parameter=a>1</parameter></function></tool_call>",
    ],
    ids=lambda text: text[:40],
)
def test_what_is_no_call_stays_text_and_nothing_is_lost(text: str) -> None:
    assert parse([text]) == parse(text) == [text]


def test_a_call_after_one_that_was_broken_off_is_found() -> None:
    assert parse('<tool_call>{"name": ' + WEATHER) == ['<tool_call>{"name": ', weather()]


def test_marks_and_quotes_inside_of_arguments_are_arguments() -> None:
    arguments = {"text": 'say "</tool_call>" or <tool_call> \\'}
    body = json.dumps({"name": "echo", "arguments": arguments})
    (call,) = parse(f"<tool_call>{body}</tool_call>")
    assert isinstance(call, ToolCall)
    assert json.loads(call.arguments) == arguments


def test_a_call_without_its_end_mark_counts_when_the_answer_is_over() -> None:
    assert parse(WEATHER.removesuffix("\n</tool_call>")) == [weather()]
    assert parse(WEATHER.removesuffix("call>")) == [weather()]


def test_arguments_may_be_written_as_a_string_or_left_out_and_hold_line_ends() -> None:
    assert parse('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>') == [
        ToolCall("call_0", "f", '{"a": 1}')
    ]
    assert parse('<tool_call>{"name": "f"}</tool_call>') == [ToolCall("call_0", "f", "{}")]
    (call,) = parse('<tool_call>{"name": "f", "arguments": {"a": "one\ntwo \u65e5"}}</tool_call>')
    assert isinstance(call, ToolCall)
    assert call.arguments == '{"a": "one\\ntwo \u65e5"}'


def test_ids_are_new_each_time_and_look_like_the_apis() -> None:
    calls = [event for _ in range(20) for event in ToolCallParser().push(WEATHER)]
    ids = {call.id for call in calls if isinstance(call, ToolCall)}
    assert len(ids) == 20
    assert all(i.startswith("call_") for i in ids)


@given(data=st.data())
def test_it_does_not_matter_how_the_text_is_cut(data: st.DataObject) -> None:
    part = st.sampled_from([WEATHER, TIME, "<tool_call>", "</tool_call>", '{"', "text", "\n", " ", "<", '"', "\\"])
    text = "".join(data.draw(st.lists(part, max_size=8)))
    assert parse(data.draw(cuts(text))) == parse([text])


@given(text=st.text(alphabet='<>/_{}":\\ toolcalnamegu', max_size=60), data=st.data())
def test_text_without_a_call_comes_out_as_it_went_in(text: str, data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(["", "<tool_call>", '<tool_call>{"name": "'])) + text
    events = parse(data.draw(cuts(text)))
    if not any(isinstance(event, ToolCall) for event in events):
        assert "".join(map(str, events)) == text


def test_a_long_call_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = 0
    take = tool_calls._Body._take

    def counted(body: tool_calls._Body, character: str) -> None:
        nonlocal taken
        taken += 1
        take(body, character)

    monkeypatch.setattr(tool_calls._Body, "_take", counted)
    body = json.dumps({"name": "f", "arguments": {"text": "a" * 4000}})
    (call,) = parse(f"<tool_call>{body}</tool_call>")
    assert isinstance(call, ToolCall)
    assert taken == len(body)
