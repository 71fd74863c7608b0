"""The time line of one ended generation and where its time went on each node, laid out as bars.

Positions and widths are shares of the whole in percent, already text: SVG takes them as they are, whatever the
language of the page does to numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from generation.models import Generation
from nodes.amounts import MISSING

#: What the generation does from an event on. Others (cache miss, failover, relayed) are moments.
_BEGINS = {
    "prefill": "prefill",
    "re-prefill": "re-prefill",
    "first token": "decode",
    "decode": "decode",
    "waiting": "waiting",
}
_MOMENTS = ("cache miss", "failover", "relayed")
_PARTS = ("compute", "queue", "network")
#: What is there is to be seen, however short it was; percent.
_LEAST_WIDTH = 0.4
_FEW = 15


@dataclass(frozen=True)
class Bar:
    """A coloured stretch. `kind` names its colour; `title` says it in words."""

    kind: str
    x: str
    width: str
    title: str

    @property
    def css(self) -> str:
        return self.kind.replace(" ", "-")


@dataclass(frozen=True)
class Happening:
    """One line of the table below the bar."""

    at: str
    event: str
    detail: str


@dataclass(frozen=True)
class HopRow:
    """One node: steps, its milliseconds in words and as a bar, longest node = 100 %."""

    node: str
    layers: str
    steps: str
    compute: str
    queue: str
    network: str
    per_step: str
    bars: list[Bar]


@dataclass(frozen=True)
class TimeLine:
    seconds: str
    stretches: list[Bar]
    moments: list[Bar]
    happenings: list[Happening]
    hops: list[HopRow]

    @property
    def kinds(self) -> list[str]:
        """What the bar needs a legend for, in a fixed order."""
        shown = {bar.kind for bar in (*self.stretches, *self.moments)}
        return [kind for kind in ("prefill", "decode", "re-prefill", "waiting", *_MOMENTS) if kind in shown]

    @property
    def is_long(self) -> bool:
        """Whether the table would push everything else off the page."""
        return len(self.happenings) > _FEW

    @property
    def summary(self) -> str:
        """The bar in words, for those who do not see it."""
        return "; ".join(bar.title for bar in (*self.stretches, *self.moments)) or "nothing"


def time_line(row: Generation) -> TimeLine:
    """Of a row as it stands; what is missing or has another shape is left out. Asks nothing of the database."""
    events = [event for event in map(_event, _list(row.timeline)) if event is not None]
    events.sort(key=lambda event: event[0])
    took = (row.finished_at - row.started_at).total_seconds() if row.finished_at else 0.0
    end = max([took, *(at for at, _, _ in events)])
    return TimeLine(
        seconds=f"{end:.2f} s",
        stretches=_stretches(events, end),
        moments=[
            Bar(name, _percent(at, end), "0%", f"{name} at {at:.2f} s: {detail}")
            for at, name, detail in events
            if name in _MOMENTS
        ],
        happenings=[Happening(f"{at:.3f} s", name, detail or MISSING) for at, name, detail in events],
        hops=_hops(row),
    )


def _stretches(events: list[tuple[float, str, str]], end: float) -> list[Bar]:
    begins = [(at, _BEGINS[name]) for at, name, _ in events if name in _BEGINS]
    bars: list[Bar] = []
    while begins:
        at, kind = begins.pop(0)
        while begins and begins[0][1] == kind == "waiting":
            begins.pop(0)  # told at each look: it is one wait
        until = begins[0][0] if begins else end
        width = max(_LEAST_WIDTH, 100 * (until - at) / end) if end else 100.0
        bars.append(Bar(kind, _percent(at, end), f"{width:.2f}%", f"{kind} from {at:.2f} s to {until:.2f} s"))
    return bars


def _hops(row: Generation) -> list[HopRow]:
    layers = {
        str(hop.get("node")): f"{hop.get('start', '?')}:{hop.get('end', '?')}"
        for hop in _list(row.route)
        if isinstance(hop, dict)
    }
    hops = [hop for hop in _list(row.hops) if isinstance(hop, dict) and isinstance(hop.get("node"), str)]
    longest = max((sum(_ms(hop, part) for part in _PARTS) for hop in hops), default=0.0)
    return [_hop(hop, layers.get(hop["node"], MISSING), longest) for hop in hops]


def _hop(hop: dict[str, Any], layers: str, longest: float) -> HopRow:
    bars: list[Bar] = []
    so_far = 0.0
    for part in _PARTS:
        spent = _ms(hop, part)
        if spent:
            bars.append(Bar(part, _percent(so_far, longest), _percent(spent, longest), f"{part} {_human_ms(spent)}"))
        so_far += spent
    steps = hop.get("steps")
    count = steps if isinstance(steps, int) and not isinstance(steps, bool) else 0
    return HopRow(
        node=hop["node"],
        layers=layers,
        steps=str(count),
        compute=_human_ms(_ms(hop, "compute")),
        queue=_human_ms(_ms(hop, "queue")),
        network=_human_ms(_ms(hop, "network")),
        per_step=_human_ms(so_far / count) if count else MISSING,
        bars=bars,
    )


def _event(value: Any) -> tuple[float, str, str] | None:
    if not isinstance(value, dict) or not isinstance(value.get("at"), (int, float)):
        return None
    return float(value["at"]), str(value.get("event", "")), str(value.get("detail", ""))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _ms(hop: dict[str, Any], part: str) -> float:
    value = hop.get(f"{part}_ms")
    return max(0.0, float(value)) if isinstance(value, (int, float)) else 0.0


def _human_ms(value: float) -> str:
    return f"{value / 1e3:.2f} s" if value >= 1000 else f"{value:.1f} ms"


def _percent(value: float, whole: float) -> str:
    return f"{100 * value / whole:.2f}%" if whole else "0%"
