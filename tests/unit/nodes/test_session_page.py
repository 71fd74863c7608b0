from __future__ import annotations

from typing import Any

import pytest

from nodes.live import NodeSnapshot
from nodes.session_page import PAGE_SIZE, session_page
from nodes.snapshots import SeenNode


def entry(session: str, **fields: Any) -> dict[str, Any]:
    return {"id": session, "past_len": 10, "bytes": 1024, "age_seconds": 5.0, "expires_in_seconds": 90.0} | fields


def seen(url: str, *entries: dict[str, Any], silent_for: float | None = None) -> SeenNode:
    sessions = {"sessions": list(entries), "layers": "0:2"}
    known = NodeSnapshot(url, {}, sessions, None, "ready")
    if silent_for is None:
        return SeenNode(known, known, 0.0, None)
    return SeenNode(NodeSnapshot(url, None, None, "silent", "unreachable"), known, silent_for, None)


@pytest.mark.parametrize(
    ("lengths", "differs"), [((10, 10), False), ((11, 10), False), ((12, 10), True), ((10, "odd"), False)]
)
def test_more_than_the_token_under_way_is_a_difference(lengths: tuple[Any, Any], differs: bool) -> None:
    nodes = [seen(f"http://{index}", entry("s", past_len=length)) for index, length in enumerate(lengths)]
    assert session_page(nodes).sessions[0].differs is differs


def test_seconds_are_as_they_would_be_now() -> None:
    (session,) = session_page([seen("http://a", entry("s"), silent_for=30.0)]).sessions
    holding = session.holdings[0]
    assert (holding.age.value, holding.age.text) == (35.0, "35 s")
    assert (holding.expires_in.value, holding.is_stale, session.is_stale) == (60.0, True, True)


def test_only_what_was_said_now_is_counted() -> None:
    page = session_page([seen("http://a", entry("s")), seen("http://b", entry("s"), entry("t"), silent_for=3.0)])
    assert (page.count, page.size, page.answered, page.asked) == (1, "1.0 KiB", 1, 2)
    assert page.summary == "1 session, 1.0 KiB; 1 of 2 nodes answered"
    assert [node.url for node in page.silent] == ["http://b"]


@pytest.mark.parametrize(("asked", "given"), [(0, 1), (2, 2), (99, 2)])
def test_a_page_that_is_not_there_is_the_nearest_one(asked: int, given: int) -> None:
    nodes = [seen("http://a", *(entry(f"{number:04}") for number in range(PAGE_SIZE + 1)))]
    page = session_page(nodes, number=asked)
    assert (page.number, page.pages) == (given, 2)


def test_an_odd_entry_leaves_gaps() -> None:
    page = session_page([seen("http://a", {"id": "s", "age_seconds": float("nan"), "bytes": None})])
    holding = page.sessions[0].holdings[0]
    assert (holding.tokens, holding.size, holding.age.text, holding.age.value) == ("-", "-", "-", None)
