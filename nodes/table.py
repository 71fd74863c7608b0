"""Aligned tables for the terminal."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def aligned(header: Sequence[str], rows: Sequence[Sequence[object]], *, right: Collection[str] = ()) -> str:
    """The table as text without a line break at its end; columns named in `right` are flush right.

    Control characters in a cell become `?`: a node's answer must not drive the operator's terminal.
    """
    cells = [list(header), *([_plain(str(cell)) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    lines = []
    for row in cells:
        padded = (
            cell.rjust(width) if name in right else cell.ljust(width)
            for cell, width, name in zip(row, widths, header, strict=True)
        )
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def _plain(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text)
