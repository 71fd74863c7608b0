"""Small curves of the last hour, drawn by the server. Geometry only: the template writes the SVG."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from nodes import samples
from nodes.amounts import MISSING, human_bytes
from nodes.samples import Point

WIDTH, HEIGHT = 300, 56
#: More nodes than this are drawn as one line, their sum.
MOST_LINES = 4
MINUTE = timedelta(minutes=1)
Series = Sequence[tuple[datetime, float]]


@dataclass(frozen=True)
class Line:
    """One node's line, in pieces where samples are missing; `colour` as in the layer bar, -1 for a sum."""

    label: str
    colour: int
    pieces: list[str]


@dataclass(frozen=True)
class Curve:
    """`latest` is the newest value, of several lines their lowest and highest; `top` the value at the upper edge."""

    key: str
    title: str
    latest: str
    top: str
    lines: list[Line]


def curves(
    points: Mapping[str, Sequence[Point]],
    *,
    now: datetime,
    seconds: float,
    colours: Mapping[str, int],
) -> list[Curve]:
    """Sessions, bytes, evictions and tokens per second from the samples of each node, by its name."""
    per_node: list[tuple[str, str, Callable[[Sequence[Point]], Series], Callable[[float], str]]] = [
        ("sessions", "Sessions held", lambda one: samples.gauge(one, "sessions"), lambda value: f"{value:.0f}"),
        ("bytes", "Cache", lambda one: samples.gauge(one, "bytes"), human_bytes),
        (
            "evictions",
            "Evictions per minute",
            lambda one: [(at, 60 * rate) for at, rate in samples.per_second(one, "evictions", over=MINUTE)],
            _short,
        ),
        ("tokens", "Tokens per second", lambda one: samples.per_second(one, "tokens", over=MINUTE / 2), _short),
    ]
    return [
        _curve(key, title, {name: series(one) for name, one in points.items()}, now, seconds, colours, write)
        for key, title, series, write in per_node
    ]


def _curve(
    key: str,
    title: str,
    by_node: dict[str, Series],
    now: datetime,
    seconds: float,
    colours: Mapping[str, int],
    write: Callable[[float], str],
) -> Curve:
    filled = {name: series for name, series in by_node.items() if series}
    if not filled:
        return Curve(key, title, MISSING, "", [])
    whole = samples.total(filled.values())
    drawn: dict[str, Series] = filled
    if len(filled) > MOST_LINES:
        title, drawn = f"{title}, {len(filled)} nodes", {"all nodes": whole}
    top = max(value for series in drawn.values() for _, value in series)
    # Fewer samples are read of many nodes: only what is missing between two that were read is a hole.
    hole = 3 * min((after[0] - before[0] for before, after in itertools.pairwise(whole)), default=timedelta())
    lines = [
        Line(name, colours.get(name, -1), _pieces(series, now, max(hole, timedelta(seconds=3 * seconds)), top))
        for name, series in drawn.items()
    ]
    recent = now - max(hole, timedelta(seconds=3 * seconds))
    newest = sorted(series[-1][1] for series in drawn.values() if series[-1][0] >= recent)
    return Curve(key, title, _range(newest, write), write(top), lines)


def _range(values: Sequence[float], write: Callable[[float], str]) -> str:
    if not values:
        return MISSING
    low, high = write(values[0]), write(values[-1])
    if low != high:
        return f"{low} to {high}"
    return high if len(values) == 1 else f"{high} each"


def _pieces(series: Series, now: datetime, hole: timedelta, top: float) -> list[str]:
    """Polylines in the order of time; a single point becomes a short dash, so that it can be seen."""
    pieces: list[list[str]] = []
    before: datetime | None = None
    for at, value in series:
        x = WIDTH * (1 - (now - at) / samples.SHOWN)
        y = HEIGHT - 2 - (HEIGHT - 6) * (value / top if top > 0 else 0.0)
        if before is None or at - before > hole:
            pieces.append([])
        pieces[-1].append(f"{max(x, 0.0):.1f},{y:.1f}")
        before = at
    return [" ".join(piece if len(piece) > 1 else [piece[0], _beside(piece[0])]) for piece in pieces]


def _beside(point: str) -> str:
    x, _, y = point.partition(",")
    return f"{min(float(x) + 1.5, WIDTH):.1f},{y}"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 10 or value == 0 else f"{value:.1f}"
