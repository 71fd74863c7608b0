from __future__ import annotations

import threading
from typing import Any

from nodes.letters import KEPT_SECONDS, MOST_LETTERS, Letters
from tests.conftest import Clock
from tests.processes import wait_until

ONE, TWO = "session-one", "session-two"


class Waiter:
    """A thread that waits for a letter."""

    def __init__(self, letters: Letters, session: str, nonce: str, seconds: float = 30.0) -> None:
        self.got: list[Any] = []
        before = letters.count()[1]
        self._thread = threading.Thread(target=lambda: self.got.append(letters.take(session, nonce, seconds)))
        self._thread.start()
        wait_until(lambda: letters.count()[1] > before or not self._thread.is_alive())

    def end(self) -> Any:
        self._thread.join(10)
        assert not self._thread.is_alive()
        (letter,) = self.got
        return letter


def test_a_letter_that_lies_there_is_given_once(clock: Clock) -> None:
    letters = Letters(clock=clock)
    letters.put(ONE, "a", {"token_id": 7})
    assert letters.take(ONE, "a", 0) == {"token_id": 7}
    assert letters.take(ONE, "a", 0) is None


def test_who_waits_gets_it_as_soon_as_it_comes() -> None:
    letters = Letters()
    waiter = Waiter(letters, ONE, "a")
    letters.put(ONE, "a", {"token_id": 7})
    assert waiter.end() == {"token_id": 7}
    assert letters.count() == (0, 0)


def test_nobody_gets_the_letter_of_another_step_or_session() -> None:
    letters = Letters()
    waiter = Waiter(letters, ONE, "new")
    letters.put(ONE, "old", {"token_id": 1})
    letters.put(TWO, "new", {"token_id": 2})
    letters.put(ONE, "new", {"token_id": 3})
    assert waiter.end() == {"token_id": 3}


def test_a_wait_ends_without_a_letter() -> None:
    letters = Letters()
    assert letters.take(ONE, "a", 0.01) is None
    assert letters.count() == (0, 0)


def test_a_session_that_ends_wakes_who_waits_and_leaves_nothing() -> None:
    letters = Letters()
    mine, other = Waiter(letters, ONE, "a"), Waiter(letters, TWO, "a")
    letters.put(ONE, "b", {})
    letters.forget(ONE)
    assert mine.end() is None
    assert letters.count() == (0, 1), "another session's waits go on"
    letters.put(TWO, "a", {"token_id": 2})
    assert other.end() == {"token_id": 2}


def test_who_asks_again_takes_the_place_of_the_wait_before() -> None:
    letters = Letters()
    left = Waiter(letters, ONE, "a")
    got: list[Any] = []
    again = threading.Thread(target=lambda: got.append(letters.take(ONE, "a", 30.0)))
    again.start()
    assert left.end() is None
    letters.put(ONE, "a", {"token_id": 7})
    again.join(10)
    assert got == [{"token_id": 7}]


def test_a_letter_that_nobody_fetches_vanishes(clock: Clock) -> None:
    letters = Letters(clock=clock)
    letters.put(ONE, "a", {})
    clock.now += KEPT_SECONDS - 1
    letters.put(ONE, "b", {})
    clock.now += 2
    letters.sweep()
    assert letters.count() == (1, 0)
    assert letters.take(ONE, "a", 0) is None


def test_the_oldest_goes_when_there_are_too_many(clock: Clock) -> None:
    letters = Letters(clock=clock)
    for number in range(MOST_LETTERS + 1):
        letters.put(ONE, str(number), {"token_id": number})
    assert letters.count() == (MOST_LETTERS, 0)
    assert letters.take(ONE, "0", 0) is None
    assert letters.take(ONE, str(MOST_LETTERS), 0) == {"token_id": MOST_LETTERS}
