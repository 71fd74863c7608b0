from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from meshsite.leaving_node import CONFIRM_SECONDS, LeavingNode
from nodes.errors import NodeUnreachable
from tests.conftest import Clock

URL = "http://n"


class FakeNode:
    """Says how many sessions it holds; refuses to hear while `is_deaf`."""

    url = URL

    def __init__(self, *sessions: int) -> None:
        self.sessions_left = list(sessions)
        self.is_deaf = False
        self.told: list[str] = []

    def set_draining(self, draining: bool, *, timeout: float) -> None:
        if self.is_deaf:
            raise NodeUnreachable("no")
        assert draining
        self.told.append("drain")

    def sessions(self, *, timeout: float) -> dict[str, Any]:
        self.told.append("sessions")
        return {"stats": {"sessions": self.sessions_left.pop(0)}}


class Leaving:
    """A node that leaves, whose background thread makes one round for each `round`."""

    def __init__(self, node: FakeNode, clock: Clock, seconds: float = 60.0) -> None:
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self.node = LeavingNode(lambda: node, seconds, clock=clock, pause=self._pause)  # type: ignore[arg-type, return-value]
        self.first = True

    def _pause(self, seconds: float) -> None:
        self._done.release()
        self._go.acquire()

    def round(self) -> bool:
        """Whether the node may end after one more look at it."""
        may_end = self.node.step()
        if not self.first:
            self._go.release()
        self.first = False
        assert self._done.acquire(timeout=10)
        return may_end or self.node.step()


def test_a_node_is_told_to_drain_once_and_may_end_when_its_sessions_have(clock: Clock) -> None:
    node = FakeNode(2, 1, 0)
    leaving = Leaving(node, clock)
    assert [leaving.round() for _ in range(3)] == [False, False, True]
    assert node.told == ["drain", "sessions", "sessions", "sessions"]


def test_sessions_that_do_not_end_are_not_waited_for_for_ever(clock: Clock) -> None:
    leaving = Leaving(FakeNode(1, 1), clock, seconds=60)
    assert not leaving.round()
    clock.advance(60)
    assert leaving.node.step()


def test_a_node_that_does_not_hear_is_told_again_and_then_ended(clock: Clock) -> None:
    node = FakeNode(1)
    node.is_deaf = True
    leaving = Leaving(node, clock)
    assert not leaving.round()
    clock.advance(CONFIRM_SECONDS)
    assert leaving.node.step()


def test_an_odd_answer_is_no_end_of_asking(clock: Clock) -> None:
    node = FakeNode()
    answers: Iterator[Any] = iter([{}, {"stats": None}, [], {"stats": {"sessions": 0}}])
    node.sessions = lambda *, timeout: next(answers)  # type: ignore[assignment, method-assign]
    leaving = Leaving(node, clock)
    assert [leaving.round() for _ in range(4)] == [False, False, False, True]


def test_a_node_that_hears_later_is_drained_then(clock: Clock) -> None:
    node = FakeNode(0)
    node.is_deaf = True
    leaving = Leaving(node, clock)
    assert not leaving.round()
    node.is_deaf = False
    assert leaving.round()
