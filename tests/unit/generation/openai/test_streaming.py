"""POST /v1/chat/completions with `stream: true`."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from generation.answer import Finished, Silence, TextDelta
from generation.errors import ContextLengthExceeded, GaveUp
from generation.openai.chat_shape import ChatShape
from generation.openai.choices import Choices
from generation.openai.client_socket import watch
from generation.openai.sse import EventStream
from nodes.errors import KVCacheMiss, NodeTimeout
from tests.processes import wait_until

from .conftest import CHAT, MODEL, PARIS, FakeAnswer, FakeHead, FakePrompter, assert_is_error

Post = Callable[..., Any]
STREAM = {**CHAT, "stream": True}
WITH_USAGE = {**STREAM, "stream_options": {"include_usage": True}}


def events(content: bytes) -> list[Any]:
    """The events of a stream; "[DONE]" and comments as strings."""
    assert content.endswith(b"\n\n")
    read: list[Any] = []
    for block in content.decode().removesuffix("\n\n").split("\n\n"):
        assert "\n" not in block
        if block.startswith("data: {"):
            read.append(json.loads(block.removeprefix("data: ")))
        else:
            read.append(block.removeprefix("data: "))
    return read


def stream(answer: FakeAnswer, **options: Any) -> EventStream:
    choices = Choices(answer, n=1, total=1, id="chatcmpl-1", fingerprint="fp_1")  # type: ignore[arg-type]
    return EventStream(choices, ChatShape(choices, FakePrompter()), **options)  # type: ignore[arg-type]


def test_c01_a_stream_has_the_exact_shape(post: Post, head: FakeHead) -> None:
    response = post(STREAM)
    assert response.status_code == 200
    chunks = events(response.getvalue())

    def chunk(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return {
            "id": chunks[0]["id"],
            "object": "chat.completion.chunk",
            "created": 1_700_000_001,
            "model": MODEL,
            "system_fingerprint": chunks[0]["system_fingerprint"],
            "choices": [choice],
        }

    assert chunks == [
        chunk({"role": "assistant", "content": "", "refusal": None}),
        chunk({"content": "Par"}),
        chunk({"content": "is."}),
        chunk({}, "stop"),
        "[DONE]",
    ]
    assert head.asked[0]["streamed"] is True


def test_d11_the_headers_keep_proxies_from_collecting_the_stream(post: Post) -> None:
    response = post(STREAM)
    assert response.headers["Content-Type"] == "text/event-stream"
    assert response.headers["Cache-Control"] == "no-cache"
    assert response.headers["X-Accel-Buffering"] == "no"
    assert "Content-Length" not in response.headers
    assert response.headers["x-request-id"]
    response.close()


def test_c01_usage_is_one_more_chunk_when_asked_for(post: Post) -> None:
    *before, finish, usage, done = events(post(WITH_USAGE).getvalue())
    assert done == "[DONE]"
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] == 9
    assert usage["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert finish["choices"][0]["finish_reason"] == "stop"
    assert all(chunk["usage"] is None and chunk["choices"] for chunk in [*before, finish])
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in [*before, finish, usage]}) == 1


@pytest.mark.parametrize("body", [STREAM, {**STREAM, "stream_options": {"include_usage": False}}])
def test_c01_without_being_asked_no_chunk_has_usage_or_empty_choices(post: Post, body: dict[str, Any]) -> None:
    chunks = events(post(body).getvalue())[:-1]
    assert all(chunk["choices"] and "usage" not in chunk for chunk in chunks)


def test_every_text_arrives_as_it_is(post: Post, head: FakeHead) -> None:
    texts = ["a\nb", "\r\n\r\ndata: x", "\u2028", "\U0001f469\u200d\U0001f467", "\x00", '"', "\ufffd", " "]
    head.script = (*map(TextDelta, texts), Finished("length", 1, 8))
    response = post(STREAM)
    chunks = events(response.getvalue())
    assert [chunk["choices"][0]["delta"]["content"] for chunk in chunks[1:-2]] == texts
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"


def test_each_event_goes_out_as_it_comes_and_silence_as_a_comment() -> None:
    answer = FakeAnswer((Silence(), TextDelta("a"), Finished("stop", 1, 1)))
    pieces = stream(answer)
    assert b'"role":"assistant"' in next(pieces)
    assert answer.given == 0
    assert next(pieces) == b": keep-alive\n\n"
    assert answer.given == 1
    assert b'"content":"a"' in next(pieces)
    assert answer.given == 2
    pieces.close()


# -- errors


def test_what_start_refuses_has_its_own_status_and_no_stream(post: Post, head: FakeHead) -> None:
    head.refusal = ContextLengthExceeded("Too long.", param="messages")
    assert_is_error(post(STREAM), 400, "context_length_exceeded", "messages")


@pytest.mark.parametrize(
    "error, code",
    [
        (NodeTimeout("http://10.0.0.5:8001"), "node_timeout"),
        (GaveUp(), "gave_up"),
        (KVCacheMiss(), "cache_lost"),
        (RuntimeError("a bug"), "internal"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_c02_an_error_in_mid_stream_is_one_event_and_then_the_end(
    post: Post, head: FakeHead, error: Exception, code: str
) -> None:
    head.script = (TextDelta("Par"), error)
    content = post(WITH_USAGE).getvalue()
    _, text, last = events(content)
    assert text["choices"][0]["delta"] == {"content": "Par"}
    assert set(last) == {"error"}
    assert set(last["error"]) == {"message", "type", "param", "code"}
    assert (last["error"]["code"], last["error"]["type"]) == (code, "server_error")
    assert b"10.0.0.5" not in content and b"a bug" not in content
    assert b"[DONE]" not in content


def test_an_answer_that_was_cancelled_is_not_taken_for_a_whole_one(post: Post, head: FakeHead) -> None:
    head.script = (TextDelta("Par"),)
    *_, last = events(post(STREAM).getvalue())
    assert last["error"]["code"] == "cancelled"


# -- clients that go away


def test_d01_a_closed_stream_cancels_its_answer() -> None:
    answer = FakeAnswer(PARIS)
    pieces = stream(answer)
    next(pieces)
    next(pieces)
    pieces.close()
    pieces.close()
    assert (answer.given, answer.cancelled) == (1, 1)


def test_d01_a_stream_that_was_never_read_cancels_its_answer(post: Post, head: FakeHead) -> None:
    post(STREAM).close()
    assert (head.made[0].given, head.made[0].cancelled) == (0, 1)


def test_a_stream_that_was_read_to_its_end_cancels_nothing(post: Post, head: FakeHead) -> None:
    response = post(STREAM)
    response.getvalue()
    response.close()
    assert head.made[0].cancelled == 0


def test_a_bug_in_the_middle_cancels_the_answer(post: Post, head: FakeHead) -> None:
    head.script = (TextDelta("Par"), RuntimeError("a bug"), Silence())
    response = post(STREAM)
    response.getvalue()
    response.close()
    assert head.made[0].cancelled == 1


def test_d02_a_client_that_has_gone_is_noticed_at_the_next_silence() -> None:
    ours, theirs = socket.socketpair()
    answer = FakeAnswer((Silence(), theirs.close, Silence(), TextDelta("a"), Finished("stop", 1, 1)))
    with ours, theirs:
        pieces = stream(answer, client_gone=watch({"gunicorn.socket": ours}))
        sent = list(pieces)
        pieces.close()
    assert sent[1:] == [b": keep-alive\n\n"]
    assert (answer.given, answer.cancelled) == (2, 1)


@pytest.mark.django_db(transaction=True)
def test_f06_a_stream_holds_no_database_connection(post: Post, head: FakeHead, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(connection, "close", lambda: order.append("closed"))
    head.script = (lambda: order.append("streaming"), *PARIS)
    response = post(STREAM)
    assert order == ["closed"]
    assert response.getvalue().endswith(b"[DONE]\n\n")
    assert order == ["closed", "streaming"]


# -- several choices


def test_each_choice_has_its_own_role_text_and_finish(post: Post, head: FakeHead) -> None:
    head.scripts = [PARIS, (TextDelta("Rome?"), Finished("length", 7, 3))]
    *chunks, usage, done = events(post({**WITH_USAGE, "n": 2}).getvalue())
    assert done == "[DONE]"
    assert all(len(chunk["choices"]) == 1 for chunk in chunks)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [choice["index"] for choice in choices[:2]] == [0, 1]
    assert all(choice["delta"]["role"] == "assistant" for choice in choices[:2])
    for index, text, reason in ((0, "Paris.", "stop"), (1, "Rome?", "length")):
        of_this = [choice for choice in choices if choice["index"] == index]
        assert "".join(choice["delta"].get("content", "") for choice in of_this) == text
        assert [choice["finish_reason"] for choice in of_this if choice["finish_reason"]] == [reason]
        assert of_this[-1]["delta"] == {}
    assert (usage["usage"]["prompt_tokens"], usage["usage"]["completion_tokens"]) == (7, 5)
    assert len({(chunk["id"], chunk["created"], chunk["system_fingerprint"]) for chunk in [*chunks, usage]}) == 1


def test_c02_a_choice_that_fails_ends_the_stream_for_all(post: Post, head: FakeHead) -> None:
    head.scripts = [PARIS, (NodeTimeout(),)]
    response = post({**STREAM, "n": 2})
    *_, last = events(response.getvalue())
    response.close()
    assert last["error"]["code"] == "node_timeout"
    assert [answer.cancelled for answer in head.made] == [1, 1]


def test_d01_a_closed_stream_cancels_every_choice(post: Post, head: FakeHead) -> None:
    head.script = (TextDelta("a"), lambda: wait_until(lambda: head.made[0].cancelled, 10, "not cancelled"))
    response = post({**STREAM, "n": 3})
    pieces = iter(response.streaming_content)
    while b'"content":"a"' not in next(pieces):
        pass
    wait_until(lambda: len(head.made) == 3, 10, "not all were begun")
    response.close()
    assert [answer.cancelled for answer in head.made] == [1, 1, 1]


def test_d01_a_stream_that_was_never_read_begins_no_further_choices(post: Post, head: FakeHead) -> None:
    post({**STREAM, "n": 3}).close()
    assert [answer.cancelled for answer in head.made] == [1]
