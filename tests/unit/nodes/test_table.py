from __future__ import annotations

from nodes.table import aligned


def test_columns_are_aligned_and_nothing_trails() -> None:
    assert aligned(("NAME", "TOKENS", "X"), [("a", 5, ""), ("longer", 1234567, "y")], right=("TOKENS",)) == (
        "NAME     TOKENS  X\na             5\nlonger  1234567  y"
    )


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert aligned(("A",), [("\x1b[31mred\n",)]) == "A\n?[31mred?"
