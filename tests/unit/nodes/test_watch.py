from __future__ import annotations

from collections.abc import Callable
from io import StringIO

from nodes.watch import watch


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def looks(count: int) -> tuple[Callable[[float], None], list[float]]:
    """A way to wait that is interrupted after so many looks, and how long each wait was to be."""
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == count:
            raise KeyboardInterrupt

    return wait, waits


def shown(text: str, columns: int = 80, rows: int = 24) -> list[str]:
    """The lines that stand on the terminal after one look."""
    out = Terminal()
    watch(lambda: text, out, 1.0, wait=looks(1)[0], size=lambda: (columns, rows))
    screen = out.getvalue().partition("\x1b[H")[2].partition("\x1b[J")[0]
    return [line.removesuffix("\x1b[K") for line in screen.splitlines()]


def test_it_looks_again_after_the_interval_until_it_is_interrupted() -> None:
    numbers = iter(range(9))
    out = StringIO()
    wait, waits = looks(3)
    watch(lambda: f"look {next(numbers)}", out, 2.5, wait=wait)
    assert waits == [2.5, 2.5, 2.5]
    assert out.getvalue() == "look 0\n\nlook 1\n\nlook 2\n\n"


def test_an_interrupt_while_it_looks_is_an_end_too() -> None:
    def interrupted() -> str:
        raise KeyboardInterrupt

    watch(interrupted, StringIO(), 1.0)


def test_a_terminal_shows_each_look_in_the_same_place() -> None:
    out = Terminal()
    watch(lambda: "one\ntwo", out, 1.0, wait=looks(2)[0], size=lambda: (80, 24))
    assert out.getvalue() == "\x1b[2J" + 2 * "\x1b[Hone\x1b[K\ntwo\x1b[K\n\x1b[J" + "\n"


def test_what_does_not_fit_is_cut_and_said() -> None:
    assert shown("\n".join("abcdef"), rows=5) == ["a", "b", "c", "… 3 more lines"]
    assert shown("\n".join("abcd"), rows=5) == ["a", "b", "c", "d"]
    assert shown("abcdef", columns=4) == ["abcd"]


def test_even_the_smallest_terminal_shows_something() -> None:
    assert shown("a\nb\nc", rows=1) == ["a", "… 2 more lines"]
