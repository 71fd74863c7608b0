"""The bar of a model's layers: which node holds which stretch, replicas in lanes of their own, gaps where none does.

Geometry only, in per cent of the width and pixels of height; the template draws it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nodes.coverage import Serves, cover
from nodes.live import NodeSnapshot

#: Nodes get these many colours in turn (`mesh-colour-0` and so on in live.css).
COLOURS = 8
#: Height of a lane by the number of lanes, in pixels: the first that fits. Thin lanes carry no text.
_LANE_HEIGHTS = ((4, 26), (12, 18), (40, 8), (10**9, 4))
_LANE_GAP = 2
_TEXT_FROM = 18
_AXIS = 20
_GAP_TEXT_FROM = 8.0  # per cent of the width
_TICK_APART = 3.0


@dataclass(frozen=True)
class Holder:
    """A node that is known to hold layers, in the state that a page shows."""

    url: str
    serves: Serves
    model: str
    start: int
    end: int
    state: str


@dataclass(frozen=True)
class Span:
    """One node in its lane."""

    url: str
    name: str
    state: str
    start: int
    end: int
    colour: int
    x: str
    width: str
    y: int
    label: str


@dataclass(frozen=True)
class Gap:
    """Layers [start, end) that no ready node holds."""

    start: int
    end: int
    x: str
    width: str
    label: str


@dataclass(frozen=True)
class LayerBar:
    """One model's bar. `height` holds the lanes, `total` the axis below too."""

    model: str
    dtype: str
    n_layers: int
    spans: list[Span]
    gaps: list[Gap]
    ticks: list[tuple[str, int]]
    lane_height: int
    height: int
    total: int

    @property
    def says(self) -> str:
        """The bar in words."""
        if not self.gaps:
            return f"All {self.n_layers} layers are covered."
        return f"No ready node holds layers {', '.join(f'{gap.start}:{gap.end}' for gap in self.gaps)}."


def layer_bars(holders: Sequence[Holder], snapshots: Sequence[NodeSnapshot]) -> list[LayerBar]:
    """A bar for each model and dtype that some holder serves, the one with the most nodes first.

    `snapshots` are the nodes that may be used, as they are now: they decide what is a gap.
    """
    kinds: dict[Serves, list[Holder]] = {}
    for holder in holders:
        kinds.setdefault(holder.serves, []).append(holder)
    largest = sorted(kinds.items(), key=lambda kind: (-len(kind[1]), kind[0].fingerprint, kind[0].dtype))
    return [_bar(serves, members, snapshots) for serves, members in largest]


def short_name(url: str) -> str:
    return url.partition("://")[2] or url


def _bar(serves: Serves, holders: Sequence[Holder], snapshots: Sequence[NodeSnapshot]) -> LayerBar:
    n_layers = serves.n_layers
    lanes = _lanes(holders)
    lane_height = next(height for most, height in _LANE_HEIGHTS if len(lanes) <= most)
    coverage = cover(snapshots, serves=serves)
    missing = coverage.gaps if coverage is not None else ()
    spans: list[Span] = []
    for index, lane in enumerate(lanes):
        for holder in lane:
            name, layers = short_name(holder.url), f"{holder.start}:{holder.end}"
            state = "" if holder.state == "ready" else f" ({holder.state})"
            spans.append(
                Span(
                    url=holder.url,
                    name=name,
                    state=holder.state,
                    start=holder.start,
                    end=holder.end,
                    colour=len(spans) % COLOURS,
                    x=_percent(holder.start, n_layers),
                    width=_percent(holder.end - holder.start, n_layers),
                    y=index * (lane_height + _LANE_GAP),
                    label=f"{name} · {layers}{state}" if lane_height >= _TEXT_FROM else "",
                )
            )
    gaps = [
        Gap(
            start=gap.start,
            end=gap.end,
            x=_percent(gap.start, n_layers),
            width=_percent(gap.end - gap.start, n_layers),
            label=f"no node: {gap}" if 100 * (gap.end - gap.start) / n_layers >= _GAP_TEXT_FROM else "",
        )
        for gap in missing
    ]
    height = max(len(lanes) * (lane_height + _LANE_GAP), lane_height) + (_TEXT_FROM + _LANE_GAP if gaps else 0)
    ends = [(span.start, span.end) for span in spans] + [(gap.start, gap.end) for gap in gaps]
    cuts = {0, n_layers, *(cut for pair in ends for cut in pair)}
    return LayerBar(
        model=next((holder.model for holder in holders if holder.model), ""),
        dtype=serves.dtype,
        n_layers=n_layers,
        spans=spans,
        gaps=gaps,
        ticks=_ticks(cuts, n_layers),
        lane_height=lane_height,
        height=height,
        total=height + _AXIS,
    )


def _lanes(holders: Sequence[Holder]) -> list[list[Holder]]:
    """The fewest lanes in which no two nodes overlap."""
    lanes: list[list[Holder]] = []
    for holder in sorted(holders, key=lambda one: (one.start, -one.end, one.url)):
        free = next((lane for lane in lanes if lane[-1].end <= holder.start), None)
        if free is None:
            lanes.append([holder])
        else:
            free.append(holder)
    return lanes


def _ticks(cuts: set[int], n_layers: int) -> list[tuple[str, int]]:
    """The layers to write under the bar, both ends always, none so near to another that they would run together."""
    ticks = [0]
    for cut in sorted(cuts - {0, n_layers}):
        if 100 * min(cut - ticks[-1], n_layers - cut) / n_layers >= _TICK_APART:
            ticks.append(cut)
    return [(_percent(cut, n_layers), cut) for cut in (*ticks, n_layers)]


def _percent(part: float, whole: float) -> str:
    # Written here and not by the template: a locale's decimal comma is no CSS number.
    return f"{100 * part / whole:.3f}%"
