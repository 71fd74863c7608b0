from __future__ import annotations

from generation.waiting_line import WaitingLine


def test_the_first_who_came_is_first_and_the_next_follows() -> None:
    line = WaitingLine()
    first, second = object(), object()
    assert line.is_first(first), "nobody stands in line"
    line.enter(first)
    line.enter(second)
    line.enter(first)
    assert (len(line), line.is_first(first), line.is_first(second)) == (2, True, False)
    line.leave(first)
    line.leave(first)
    assert line.is_first(second)
    line.leave(second)
    assert len(line) == 0


def test_every_change_is_told_and_nothing_else() -> None:
    told: list[int] = []
    line = WaitingLine(changed=lambda: told.append(len(line)))
    line.enter("a")
    line.enter("a")
    line.enter("b")
    line.leave("a")
    line.leave("a")
    assert told == [1, 2, 1]
    assert (line.holds("a"), line.holds("b")) == (False, True)


def test_who_comes_while_others_wait_stands_behind_them_and_who_finds_nobody_goes_ahead() -> None:
    line = WaitingLine()
    line.enter_behind("early")
    assert not line.holds("early")
    line.enter("first")
    line.enter_behind("second")
    line.enter_behind("second")
    line.leave("first")
    assert line.is_first("second")
    assert len(line) == 1
