"""What the live session page shows, made from what was seen of the nodes; the template only lays it out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nodes import live
from nodes.amounts import MISSING, human_bytes, human_seconds, is_number
from nodes.layer_bar import short_name
from nodes.live import NodeSnapshot
from nodes.snapshots import SeenNode

#: Sessions on one page.
PAGE_SIZE = 200


@dataclass(frozen=True)
class Seconds:
    """A stretch of time as text and, for the script that counts it on, as a number (None: unknown)."""

    text: str
    value: float | None


@dataclass(frozen=True)
class Holding:
    """One session on one node, written out. With `is_stale` the node was silent: this is what it said last."""

    node: str
    name: str
    layers: str
    tokens: str
    size: str
    age: Seconds
    idle: Seconds
    expires_in: Seconds
    hits: str
    busy: bool
    is_stale: bool


@dataclass(frozen=True)
class LiveSession:
    """With `differs` its nodes hold texts of lengths that one token under way does not explain."""

    id: str
    holdings: list[Holding]
    differs: bool

    @property
    def short(self) -> str:
        return f"{self.id[:10]}…" if len(self.id) > 12 else self.id

    @property
    def is_stale(self) -> bool:
        return all(holding.is_stale for holding in self.holdings)


@dataclass(frozen=True)
class SessionPage:
    """`silent` are the nodes whose sessions could not be read; `node` and `session` the filters in force.

    `count` and `size` are of what the nodes said just now, on all pages together.
    """

    sessions: list[LiveSession]
    count: int
    answered: int
    asked: int
    silent: list[SeenNode]
    size: str
    node: str
    session: str
    number: int
    pages: int

    @property
    def summary(self) -> str:
        nodes = f"{self.answered} of {self.asked} node{'' if self.asked == 1 else 's'} answered"
        return f"{self.count} session{'' if self.count == 1 else 's'}, {self.size}; {nodes}"

    def as_json(self) -> dict[str, Any]:
        return {
            "summary": self.summary,
            "page": self.number,
            "pages": self.pages,
            "sessions": [asdict(session) for session in self.sessions],
            "silent": [{"url": node.url, "state": node.now.state, "error": node.now.error} for node in self.silent],
        }


def session_page(seen: Sequence[SeenNode], *, node: str = "", session: str = "", number: int = 1) -> SessionPage:
    """Page `number` over all nodes, or over one node's URL or one session id where such a filter is given."""
    shown = [one for one in seen if not node or one.url == node]
    stale = {one.url for one in shown if one.now.sessions is None}
    held = live.by_session(one.known for one in shown)
    if session:
        held = {session: held[session]} if session in held else {}
    pages = max(1, -(-len(held) // PAGE_SIZE))
    number = min(max(number, 1), pages)
    here = list(held.items())[(number - 1) * PAGE_SIZE : number * PAGE_SIZE]
    ages = {one.url: one.age or 0.0 for one in shown}
    return SessionPage(
        sessions=[
            LiveSession(
                session_id,
                [_holding(snapshot, entry, snapshot.url in stale, ages[snapshot.url]) for snapshot, entry in entries],
                _differs(entries),
            )
            for session_id, entries in here
        ],
        count=sum(any(snapshot.url not in stale for snapshot, _ in entries) for entries in held.values()),
        answered=sum(one.now.sessions is not None for one in seen),
        asked=len(seen),
        silent=[one for one in seen if one.now.sessions is None],
        size=human_bytes(
            sum(
                _number(entry.get("bytes"))
                for entries in held.values()
                for snapshot, entry in entries
                if snapshot.url not in stale
            )
        ),
        node=node,
        session=session,
        number=number,
        pages=pages,
    )


def _differs(entries: Sequence[tuple[NodeSnapshot, dict[str, Any]]]) -> bool:
    # While a token travels, the nodes behind it hold one more than those before it.
    lengths = [entry["past_len"] for _, entry in entries if is_number(entry.get("past_len"))]
    return bool(lengths) and max(lengths) - min(lengths) > 1


def _holding(snapshot: NodeSnapshot, entry: dict[str, Any], is_stale: bool, seen_ago: float) -> Holding:
    return Holding(
        node=snapshot.url,
        name=short_name(snapshot.url),
        layers=str(entry.get("layers") or snapshot.layers or MISSING),
        tokens=str(entry.get("past_len", MISSING)),
        size=human_bytes(entry.get("bytes")),
        age=_seconds(entry.get("age_seconds"), seen_ago),
        idle=_seconds(entry.get("idle_seconds"), seen_ago),
        expires_in=_seconds(entry.get("expires_in_seconds"), -seen_ago),
        hits=str(entry.get("hits", MISSING)),
        busy=bool(entry.get("busy")),
        is_stale=is_stale,
    )


def _seconds(value: Any, seen_ago: float) -> Seconds:
    """The seconds as they would be now."""
    if not is_number(value):
        return Seconds(MISSING, None)
    now = max(0.0, value + seen_ago)
    return Seconds(human_seconds(now), round(now, 1))


def _number(value: Any) -> float:
    return value if is_number(value) else 0
