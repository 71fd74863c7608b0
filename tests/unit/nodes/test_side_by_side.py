from __future__ import annotations

import threading
from typing import Any

import pytest

from nodes.errors import BadRequest
from nodes.side_by_side import THREAD_NAME, ask


class Asked:
    def __init__(self, url: str) -> None:
        self.url = url


def test_answers_stand_under_the_names_of_their_requests() -> None:
    replies = ask([Asked("http://a"), Asked("http://b")], {"url": lambda one: one.url, "two": lambda one: 2}, 10)  # type: ignore[list-item]
    assert [reply.answers for reply in replies] == [{"url": "http://a", "two": 2}, {"url": "http://b", "two": 2}]


def test_an_error_ends_the_talk_with_its_node_alone() -> None:
    def refuse(one: Any) -> None:
        if one.url == "http://a":
            raise BadRequest("No.")

    first, second = ask([Asked("http://a"), Asked("http://b")], {"order": refuse, "after": lambda one: 1}, 10)  # type: ignore[list-item]
    assert (first.answers, first.error) == ({}, "No.")
    assert (second.answers, second.error) == ({"order": None, "after": 1}, None)


def test_a_machine_without_threads_left_is_an_error_of_each_node(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == f"{THREAD_NAME} http://a":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    first, second = ask([Asked("http://a"), Asked("http://b")], {"one": lambda one: 1}, 10)  # type: ignore[list-item]
    assert first.error == "http://a was not asked: this machine has no thread left."
    assert second.answers == {"one": 1}
