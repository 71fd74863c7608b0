"""What the live session page shows, made from snapshots; the template only lays it out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nodes import live
from nodes.amounts import MISSING, human_bytes, human_seconds
from nodes.live import NodeSnapshot


@dataclass(frozen=True)
class Holding:
    """One session on one node, written out."""

    node: str
    layers: str
    tokens: str
    size: str
    age: str
    idle: str
    expires_in: str
    hits: str
    busy: bool


@dataclass(frozen=True)
class LiveSession:
    id: str
    holdings: list[Holding]

    @property
    def short(self) -> str:
        return f"{self.id[:10]}…" if len(self.id) > 12 else self.id


@dataclass(frozen=True)
class SessionPage:
    """`silent` are the nodes whose sessions could not be read; `node` and `session` the filters in force."""

    sessions: list[LiveSession]
    answered: int
    silent: list[NodeSnapshot]
    size: str
    node: str
    session: str


def session_page(snapshots: Sequence[NodeSnapshot], *, node: str = "", session: str = "") -> SessionPage:
    """The page over all nodes, or over one node's URL or one session id where such a filter is given."""
    shown = [snapshot for snapshot in snapshots if not node or snapshot.url == node]
    sessions = [
        LiveSession(session_id, [_holding(snapshot, entry) for snapshot, entry in held])
        for session_id, held in live.by_session(shown).items()
        if not session or session_id == session
    ]
    return SessionPage(
        sessions=sessions,
        answered=sum(snapshot.sessions is not None for snapshot in snapshots),
        silent=[snapshot for snapshot in snapshots if snapshot.sessions is None],
        size=human_bytes(sum(_bytes(snapshot) for snapshot in shown)),
        node=node,
        session=session,
    )


def _holding(snapshot: NodeSnapshot, entry: dict[str, Any]) -> Holding:
    return Holding(
        node=snapshot.url,
        layers=str(entry.get("layers") or snapshot.layers or MISSING),
        tokens=str(entry.get("past_len", MISSING)),
        size=human_bytes(entry.get("bytes")),
        age=human_seconds(entry.get("age_seconds")),
        idle=human_seconds(entry.get("idle_seconds")),
        expires_in=human_seconds(entry.get("expires_in_seconds")),
        hits=str(entry.get("hits", MISSING)),
        busy=bool(entry.get("busy")),
    )


def _bytes(snapshot: NodeSnapshot) -> float:
    size = snapshot.stats.get("bytes")
    return size if isinstance(size, (int, float)) else 0
