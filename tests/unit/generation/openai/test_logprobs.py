"""Log probabilities, in the shape of chats and in that of completions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from generation.answer import Finished, TextDelta, TokenScore
from generation.openai.logprobs import LEAST, TextLogprobs, chat_entries

from .conftest import CHAT, COMPLETION, FakeHead, FakePrompter
from .test_streaming import events
from .test_tools import CALLS, WITH_TOOLS

Post = Callable[..., Any]
PROMPTER: Any = FakePrompter()


def score(token: str, logprob: float = -0.5, **top: float) -> TokenScore:
    return TokenScore(ord(token), logprob, tuple((ord(one), value) for one, value in top.items()))


#: "ab", then "c" of two tokens that only the second ends, then a token without text.
SCRIPT = (
    TextDelta("ab", (score("a", a=-0.5, x=-1.5), score("b", -2.0, b=-2.0, y=-3.0))),
    TextDelta("c", (TokenScore(200, -1.0), TokenScore(201, -1.25))),
    Finished("length", 7, 5, (score("z"),)),
)


def entry(token: str, logprob: float, ids: list[int], top: list[Any] | None = None) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": ids, "top_logprobs": top or []}


CONTENT = [
    entry(
        "a",
        -0.5,
        [97],
        [{"token": "a", "logprob": -0.5, "bytes": [97]}, {"token": "x", "logprob": -1.5, "bytes": [120]}],
    ),
    entry(
        "b",
        -2.0,
        [98],
        [{"token": "b", "logprob": -2.0, "bytes": [98]}, {"token": "y", "logprob": -3.0, "bytes": [121]}],
    ),
    entry("\ufffd", -1.0, [200]),
    entry("\ufffd", -1.25, [201]),
    entry("z", -0.5, [122]),
]


@pytest.fixture(autouse=True)
def script(head: FakeHead) -> None:
    head.script = SCRIPT


def test_a_chat_has_one_entry_per_token(post: Post, head: FakeHead) -> None:
    body = post({**CHAT, "logprobs": True, "top_logprobs": 2}).json()
    assert head.request.logprobs == 2
    (choice,) = body["choices"]
    assert choice["logprobs"] == {"content": CONTENT, "refusal": None}
    assert len(CONTENT) == body["usage"]["completion_tokens"]


def test_a_streamed_chat_has_the_same_entries_each_with_the_text_that_it_ends(post: Post) -> None:
    chunks = events(post({**CHAT, "logprobs": True, "top_logprobs": 2, "stream": True}).getvalue())[:-1]
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [choice["delta"].get("content") for choice in choices] == ["", "ab", "c", "", None]
    assert choices[0]["logprobs"] is choices[-1]["logprobs"] is None
    assert [choice["logprobs"]["content"] for choice in choices[1:-1]] == [CONTENT[:2], CONTENT[2:4], CONTENT[4:]]
    assert [choice["finish_reason"] for choice in choices] == [None] * 4 + ["length"]


def test_entries_of_text_that_is_held_back_are_not_lost(post: Post, head: FakeHead) -> None:
    head.prompter.supports_tools = True
    head.script = tuple(
        TextDelta(event.text, (score(chr(index)),)) if isinstance(event, TextDelta) else event
        for index, event in enumerate(CALLS, start=97)
    )
    body = {**WITH_TOOLS, "logprobs": True}
    whole = post(body).json()["choices"][0]["logprobs"]["content"]
    assert [one["token"] for one in whole] == ["a", "b", "c"]
    streamed = [chunk["choices"][0]["logprobs"] for chunk in events(post({**body, "stream": True}).getvalue())[:-1]]
    assert [one for logprobs in streamed if logprobs for one in logprobs["content"]] == whole


@pytest.mark.parametrize("body", [CHAT, {**CHAT, "logprobs": False}])
def test_a_chat_has_none_unless_asked(post: Post, body: dict[str, Any]) -> None:
    assert post(body).json()["choices"][0]["logprobs"] is None


def test_a_chat_without_a_token_has_an_empty_list(post: Post, head: FakeHead) -> None:
    head.script = (Finished("stop", 7, 0),)
    assert post({**CHAT, "logprobs": True}).json()["choices"][0]["logprobs"] == {"content": [], "refusal": None}


def test_a_completion_has_parallel_lists(post: Post) -> None:
    body = post({**COMPLETION, "logprobs": 2}, path="/v1/completions").json()
    assert body["choices"][0]["logprobs"] == {
        "tokens": ["a", "b", "bytes:\\xc8", "bytes:\\xc9", "z"],
        "token_logprobs": [-0.5, -2.0, -1.0, -1.25, -0.5],
        "top_logprobs": [
            {"a": -0.5, "x": -1.5},
            {"b": -2.0, "y": -3.0},
            {"bytes:\\xc8": -1.0},
            {"bytes:\\xc9": -1.25},
            {"z": -0.5},
        ],
        "text_offset": [0, 1, 2, 3, 3],
    }


def test_a_streamed_completion_has_the_same_lists_in_pieces(post: Post) -> None:
    body = {**COMPLETION, "logprobs": 2}
    whole = post(body, path="/v1/completions").json()["choices"][0]["logprobs"]
    chunks = events(post({**body, "stream": True}, path="/v1/completions").getvalue())[:-1]
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [choice["text"] for choice in choices] == ["ab", "c", "", ""]
    assert choices[-1]["logprobs"] is None
    pieces = [choice["logprobs"] for choice in choices[:-1]]
    assert {name: [one for piece in pieces for one in piece[name]] for name in whole} == whole


def test_offsets_never_leave_the_text_and_begin_anew_with_each_piece() -> None:
    lists = TextLogprobs(PROMPTER)
    assert lists.add([score("a"), score("b"), score("c")], begin=4, end=5)["text_offset"] == [4, 5, 5]
    assert lists.add([score("d")], begin=5, end=6)["text_offset"] == [5]
    assert lists.lists["text_offset"] == [4, 5, 5, 5]


def test_the_chosen_token_is_always_among_the_alternatives_of_a_completion() -> None:
    lists = TextLogprobs(PROMPTER)
    lists.add([score("a", -4.0, x=-0.1), score("b", -4.0)], begin=0, end=2)
    assert lists.lists["top_logprobs"] == [{"x": -0.1, "a": -4.0}, {"b": -4.0}]


def test_what_is_impossible_is_a_number_that_json_knows() -> None:
    impossible = TokenScore(97, float("-inf"), ((98, float("-inf")),))
    (found,) = chat_entries([impossible], PROMPTER)
    assert (found["logprob"], found["top_logprobs"][0]["logprob"]) == (LEAST, LEAST)
    lists = TextLogprobs(PROMPTER)
    lists.add([impossible], begin=0, end=1)
    assert lists.lists["token_logprobs"] == [LEAST]
    assert set(lists.lists["top_logprobs"][0].values()) == {LEAST}
