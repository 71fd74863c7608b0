"""From numbers to tables for people. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_TITLES = {
    "announcing": "Nodes that announce themselves (ms: real time; seconds of storm and restart: virtual)",
    "planning": "One plan (real milliseconds)",
    "polling": "One look at all nodes by one head worker (real time)",
    "load": "Sessions at a share of the mesh's slots (virtual seconds; slots taken and tokens in the later half)",
    "faults": "The same while nodes fail (virtual seconds)",
    "memory": "Memory of a head worker (bytes)",
    "arithmetic": "On paper",
}


def tables(found: Mapping[str, Any]) -> list[str]:
    """One line for each name, one column for each run; lists inside a run get tables of their own."""
    lines: list[str] = []
    for part, title in _TITLES.items():
        if part in found:
            lines += ["", title, *_table(found[part])]
    lines += [
        "",
        f"Seed {found['seed']}, {found['seconds']} s; torch was {'' if found['torch_loaded'] else 'not '}loaded.",
    ]
    return lines


def _table(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    flat = [_flat(run) for run in runs]
    lines = [
        f"  {name:<34}" + "".join(f"{_cell(run.get(name)):>14}" for run in flat)
        for name in flat[0]
        if not isinstance(flat[0][name], list)
    ]
    for run in flat:
        for name, value in run.items():
            if isinstance(value, list) and value:
                lines += ["", f"  {name}", *_rows(value)]
    return lines


def _rows(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    widths = [max(len(name), *(len(_cell(row[name])) for row in rows)) for name in rows[0]]
    lines = ["  " + "  ".join(f"{name:>{width}}" for name, width in zip(rows[0], widths, strict=True))]
    for row in rows:
        cells = (f"{_cell(value):>{width}}" for value, width in zip(row.values(), widths, strict=True))
        lines.append("  " + "  ".join(cells))
    return lines


def _flat(run: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in run.items():
        if isinstance(value, Mapping):
            found |= {f"{name}: {inner}": number for inner, number in value.items()}
        else:
            found[name] = value
    return found


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
