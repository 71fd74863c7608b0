"""The table family x split x mode that `pytest -k architectures` prints at its end."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

#: Where the run keeps its table.
TABLE = pytest.StashKey["ArchitectureTable"]()


@dataclass
class ArchitectureTable:
    """What was measured: per family and split, and per mode, the largest logit error and whether the ids agree."""

    cells: dict[tuple[str, str], dict[str, tuple[float, bool]]] = field(default_factory=dict)

    def record(self, family: str, split: str, mode: str, *, error: float, ids_equal: bool) -> None:
        self.cells.setdefault((family, split), {})[mode] = (error, ids_equal)

    def as_plain(self) -> list[tuple[str, str, str, float, bool]]:
        """For another process: `add_plain` there gives the same table."""
        return [(*key, mode, *cell) for key, row in self.cells.items() for mode, cell in row.items()]

    def add_plain(self, rows: list[tuple[str, str, str, float, bool]]) -> None:
        for family, split, mode, error, ids_equal in rows:
            self.record(family, split, mode, error=error, ids_equal=ids_equal)

    def lines(self, bar: float) -> list[str]:
        """One line per family and split, the worst error of each mode; what is not equal stands out."""
        modes = list(dict.fromkeys(mode for row in self.cells.values() for mode in row))
        families = max(len(family) for family, _ in self.cells) + 2
        splits = max(len(split) for _, split in self.cells) + 2
        lines = [
            "".join(["FAMILY".ljust(families), "SPLIT".ljust(splits), *(mode.upper().rjust(14) for mode in modes)])
        ]
        shown = ""
        for (family, split), row in sorted(self.cells.items()):
            cells = [self._cell(*row[mode], bar) if mode in row else "not run" for mode in modes]
            name = "" if family == shown else family
            lines.append("".join([name.ljust(families), split.ljust(splits), *(cell.rjust(14) for cell in cells)]))
            shown = family
        wrong = sum(not ids or not error < bar for row in self.cells.values() for error, ids in row.values())
        total = sum(map(len, self.cells.values()))
        verdict = "all equal" if not wrong else f"{wrong} NOT EQUAL"
        lines.append(f"{total} cells, {verdict}: logits of every position within {bar:g}, greedy ids of generate().")
        return lines

    @staticmethod
    def _cell(error: float, ids_equal: bool, bar: float) -> str:
        if error < bar and ids_equal:
            return f"{error:.0e}"
        return f"{error:.0e} WRONG" if ids_equal else "IDS DIFFER"
