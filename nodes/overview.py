"""What the mesh overview shows, made from what was seen of the nodes and their rows; the template only lays it out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from nodes.amounts import MISSING, human_bytes, human_seconds, is_number
from nodes.coverage import MOST_LAYERS, Serves
from nodes.layer_bar import Holder, LayerBar, layer_bars, short_name
from nodes.models import Node
from nodes.pace import NodePace, mark_of
from nodes.snapshots import SeenNode


@dataclass(frozen=True)
class Fill:
    """How much of a limit is used; `percent` for the little bar, empty when there is no telling."""

    used: str
    limit: str
    percent: str
    is_high: bool


@dataclass(frozen=True)
class NodeLine:
    """One node, written out. `state` is ready, draining, unreachable, removed or absent.

    `age` are seconds since what is shown was said, None for never; with `is_stale` it was not said just now.
    """

    pk: int | None
    url: str
    name: str
    state: str
    note: str
    is_stale: bool
    layers: str
    model: str
    hardware: str
    sessions: Fill
    bytes: Fill
    ttl: str
    hits: str
    misses: str
    evictions: str
    evictions_by_reason: dict[str, int]
    rate: str
    compute: str
    queue: str
    age: float | None
    age_text: str
    version: str
    problem: str


@dataclass(frozen=True)
class Overview:
    """The mesh at one moment. `colours` are the nodes' in the bars, for the curves."""

    bars: list[LayerBar]
    nodes: list[NodeLine]
    colours: dict[str, int]

    @property
    def summary(self) -> str:
        """One sentence for whoever listens instead of looking."""
        members = [node for node in self.nodes if node.state != "absent"]
        ready = sum(node.state == "ready" for node in members)
        text = f"{ready} of {len(members)} node{'' if len(members) == 1 else 's'} ready. "
        return text + (self.bars[0].says if self.bars else "No layers are known.")

    def as_json(self) -> dict[str, Any]:
        return {
            "summary": self.summary,
            "models": [
                {
                    "model": bar.model,
                    "dtype": bar.dtype,
                    "n_layers": bar.n_layers,
                    "gaps": [[gap.start, gap.end] for gap in bar.gaps],
                    "nodes": [
                        {"url": span.url, "start": span.start, "end": span.end, "state": span.state}
                        for span in bar.spans
                    ],
                }
                for bar in self.bars
            ],
            "nodes": [asdict(node) for node in self.nodes],
        }


def overview(seen: Sequence[SeenNode], rows: Sequence[Node]) -> Overview:
    """The page over the nodes of the mesh, then over rows whose nodes are not of the mesh any more."""
    by_url = {row.url: row for row in rows}
    pairs: list[tuple[SeenNode | None, Node | None]] = [(node, by_url.get(node.url)) for node in seen]
    members = {node.url for node in seen}
    pairs += [(None, row) for row in rows if row.url not in members]
    lines = [node_line(node, row) for node, row in pairs]
    holders = [
        holder
        for (node, row), line in zip(pairs, lines, strict=True)
        if line.state != "absent" and (holder := _holder(node, row, line.state)) is not None
    ]
    removed = {row.url for row in rows if row.is_removed}
    bars = layer_bars(_with_layer_counts(holders), [node.now for node in seen if node.url not in removed])
    return Overview(bars, lines, {span.url: span.colour for bar in bars for span in bar.spans})


def node_line(node: SeenNode | None, row: Node | None) -> NodeLine:
    """One node from what was seen of it and its row, of which one may be missing."""
    known = node.known if node is not None else None
    status: Mapping[str, Any] = (known.status if known is not None else None) or {}
    stats, limits = (known.stats, known.limits) if known is not None else ({}, {})
    work = status.get("work")
    versions = status.get("versions")
    live_state = node.now.state if node is not None else "absent"
    is_removed = row is not None and row.is_removed and node is not None
    url = node.url if node is not None else row.url if row is not None else ""
    evictions = _counts(stats.get("evictions"))
    compute, queue = _times(node.pace if node is not None else None, status)
    age = node.age if node is not None else None
    return NodeLine(
        pk=row.pk if row is not None else None,
        url=url,
        name=short_name(url),
        state="removed" if is_removed else live_state,
        note=live_state if is_removed and live_state != "ready" else "",
        is_stale=node is None or node.is_stale,
        layers=str(status.get("layers") or (row.layers if row else "") or MISSING),
        model=str(status.get("model") or (row.model_name if row else "") or MISSING),
        hardware=_hardware(status, row),
        sessions=_fill(stats.get("sessions"), limits.get("max_sessions"), str),
        bytes=_fill(stats.get("bytes"), limits.get("max_bytes"), human_bytes),
        ttl=human_seconds(limits.get("ttl_seconds")),
        hits=str(stats.get("hits", MISSING)),
        misses=_by_reason(stats.get("misses")),
        evictions=_by_reason(stats.get("evictions")),
        evictions_by_reason=evictions,
        rate=_rate(node, isinstance(work, dict)),
        compute=compute,
        queue=queue,
        age=age,
        age_text=human_seconds(age) if age is not None else "never" if node is not None else MISSING,
        version=str((versions.get("meshnet") if isinstance(versions, dict) else None) or (row.version if row else ""))
        or MISSING,
        problem=node.now.cause if node is not None else _absence(row),
    )


def _absence(row: Node | None) -> str:
    """Why a row has no node: this head asks those in its settings, and those that announce themselves."""
    if row is None or row.announced_at is None:
        return "not among this head's nodes any more"
    return "said good-bye" if row.left_at is not None else "offline: it announces itself no more"


def _holder(node: SeenNode | None, row: Node | None, state: str) -> Holder | None:
    """Which layers a node is known to hold: by its own word, else by its row."""
    status = (node.known.status if node is not None else None) or {}
    start, end, n_layers = status.get("start_layer"), status.get("end_layer"), status.get("n_layers")
    if node is not None and isinstance(start, int) and isinstance(end, int) and isinstance(n_layers, int):
        if not 0 <= start < end <= n_layers <= MOST_LAYERS:
            return None
        serves = Serves(str(status.get("fingerprint", "")), str(status.get("dtype", "")), n_layers)
        return Holder(node.url, serves, str(status.get("model", "")), start, end, state)
    if row is None or row.start_layer is None or row.end_layer is None or row.start_layer >= row.end_layer:
        return None
    return Holder(row.url, Serves(row.fingerprint, row.dtype, 0), row.model_name, row.start_layer, row.end_layer, state)


def _with_layer_counts(holders: Sequence[Holder]) -> list[Holder]:
    """Holders known by their rows alone do not say how many layers their model has: others do, else the last end."""
    counts: dict[tuple[str, str], int] = {}
    for holder in holders:
        kind = (holder.serves.fingerprint, holder.serves.dtype)
        counts[kind] = max(counts.get(kind, 0), holder.serves.n_layers, holder.end)
    return [
        holder
        if holder.serves.n_layers
        else replace(
            holder,
            serves=replace(holder.serves, n_layers=counts[holder.serves.fingerprint, holder.serves.dtype]),
        )
        for holder in holders
    ]


def _fill(used: Any, limit: Any, write: Any) -> Fill:
    percent, is_high = "", False
    if is_number(used) and is_number(limit) and limit > 0:
        part = min(max(used / limit, 0.0), 1.0)
        percent, is_high = f"{100 * part:.1f}%", part >= 0.9
    return Fill(
        write(used) if is_number(used) else MISSING, write(limit) if is_number(limit) else MISSING, percent, is_high
    )


def _hardware(status: Mapping[str, Any], row: Node | None) -> str:
    dtype = status.get("dtype") or (row.dtype if row else "")
    device = status.get("device") or (row.device if row else "")
    return " · ".join(str(part) for part in (dtype, device) if part) or MISSING


def _counts(value: Any) -> dict[str, int]:
    return {str(name): count for name, count in value.items() if is_number(count)} if isinstance(value, dict) else {}


def _by_reason(value: Any) -> str:
    if not isinstance(value, dict):
        return MISSING
    return ", ".join(f"{reason} {count}" for reason, count in _counts(value).items() if count) or "0"


def _rate(node: SeenNode | None, counts: bool) -> str:
    if node is None or node.pace is None or not counts or node.is_stale:
        return MISSING
    rate = node.pace.steps_per_second
    return f"{rate:.1f}" if rate < 100 else f"{rate:.0f}"


def _times(pace: NodePace | None, status: Mapping[str, Any]) -> tuple[str, str]:
    """Milliseconds of a step: lately, else on average since the node's start."""
    compute, queue = (pace.compute_ms, pace.queue_ms) if pace is not None else (None, None)
    if compute is None or queue is None:
        mark = mark_of(dict(status), 0.0)
        if mark is None or not mark.steps:
            return MISSING, MISSING
        compute, queue = mark.compute_ms / mark.steps, mark.queue_ms / mark.steps
    return f"{compute:.1f} ms", f"{queue:.1f} ms"
