"""Showing something that changes in a terminal, in place, until Ctrl-C."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import Protocol

#: Cursor to the upper left corner; each line then clears what was behind it, the last one what was below. Nothing is
#: blank in between, so that nothing flickers.
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_CLEAR_SCREEN = "\x1b[2J"


class Output(Protocol):
    """What Django's commands write to."""

    def write(self, text: str) -> object: ...
    def flush(self) -> object: ...
    def isatty(self) -> bool: ...


def watch(
    render: Callable[[], str],
    out: Output,
    seconds: float,
    *,
    wait: Callable[[float], object] = time.sleep,
    size: Callable[[], tuple[int, int]] = shutil.get_terminal_size,
) -> None:
    """Writes what `render` says every so many seconds; returns at Ctrl-C, whenever it comes.

    A terminal shows the newest in place, as much as fits; anything else gets one text after the other.
    """
    try:
        in_place = out.isatty()
        if in_place:
            out.write(_CLEAR_SCREEN)
        while True:
            text = render()
            out.write(_screen(text, *size()) if in_place else f"{text}\n\n")
            out.flush()
            wait(seconds)
    except KeyboardInterrupt:
        if out.isatty():
            out.write("\n")  # the shell's prompt stands on a line of its own


def _screen(text: str, columns: int, rows: int) -> str:
    """The text in place, cut to the terminal: a longer one would scroll, and home would be somewhere else."""
    lines = text.splitlines()
    if len(lines) > rows - 1:
        hidden = len(lines) - max(rows - 2, 1)
        lines = [*lines[: max(rows - 2, 1)], f"… {hidden} more lines"]
    return _HOME + "".join(f"{line[:columns]}{_CLEAR_LINE}\n" for line in lines) + _CLEAR_BELOW
