"""Samples of the nodes' numbers: what the keepers write, and the last hour of it for the curves.

Every keeper writes the same rows: an interval ends at the same moment for all, and whoever comes second is ignored.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from nodes.amounts import is_number
from nodes.live import NodeSnapshot
from nodes.models import Node, NodeSample

#: Of more nodes than this only every fourth interval is read: a page has no room for more points.
MANY_NODES = 20
SHOWN = timedelta(hours=1)
#: Most rows that one keeper deletes at once, beside those that it just wrote as many of.
MOST_DELETED = 1000
_LARGEST = 2**63 - 1  # of a database's big integer


def interval_end(now: datetime, seconds: float) -> datetime:
    """The end of the last interval that is over: a multiple of `seconds` since 1970."""
    return datetime.fromtimestamp(now.timestamp() // seconds * seconds, tz=UTC)


@dataclass(frozen=True)
class Point:
    """One node's sample; `evictions` and `tokens` count since the node's start."""

    at: datetime
    sessions: int
    bytes: int
    evictions: int
    tokens: int


def sample_of(snapshot: NodeSnapshot, node_id: int, at: datetime) -> NodeSample | None:
    """The row of a node as it was seen; None when it did not say all of its numbers."""
    stats = snapshot.stats
    work = (snapshot.status or {}).get("work")
    evictions = stats.get("evictions")
    if not isinstance(evictions, dict) or not isinstance(work, dict):
        return None
    numbers = [stats.get("sessions"), stats.get("bytes"), *evictions.values(), work.get("tokens")]
    if not all(is_number(number) and 0 <= number <= _LARGEST for number in numbers):
        return None
    return NodeSample(
        node_id=node_id,
        at=at,
        sessions=min(int(stats["sessions"]), 2**31 - 1),
        bytes=int(stats["bytes"]),
        evictions=min(int(sum(evictions.values())), _LARGEST),
        tokens=int(work["tokens"]),
    )


def write(snapshots: Sequence[NodeSnapshot], at: datetime) -> None:
    """Writes a row per node that was heard and has a row of its own. Rows that are there already stay."""
    ids = dict(Node.objects.filter(url__in=[snapshot.url for snapshot in snapshots]).values_list("url", "pk"))
    rows = [sample_of(snapshot, ids[snapshot.url], at) for snapshot in snapshots if snapshot.url in ids]
    NodeSample.objects.bulk_create([row for row in rows if row is not None], ignore_conflicts=True)


def delete_older(than: datetime, *, most: int) -> None:
    """Deletes the oldest rows, `most` at once: a long backlog must not hold the database."""
    keys = list(NodeSample.objects.filter(at__lt=than).order_by("at").values_list("pk", flat=True)[:most])
    if keys:
        NodeSample.objects.filter(pk__in=keys).delete()


def last_hour(now: datetime, seconds: float, *, nodes: int = 1, node_id: int | None = None) -> dict[int, list[Point]]:
    """Points by node, oldest first, of one node or of all `nodes`, in one query."""
    samples = NodeSample.objects.filter(at__gte=now - SHOWN)
    if node_id is not None:
        samples = samples.filter(node_id=node_id)
    elif nodes > MANY_NODES:
        samples = samples.filter(at__in=_every_fourth(now, seconds))
    points: dict[int, list[Point]] = defaultdict(list)
    fields = ("node_id", "at", "sessions", "bytes", "evictions", "tokens")
    for key, *numbers in samples.order_by("at").values_list(*fields):
        points[key].append(Point(*numbers))
    return dict(points)


def per_second(points: Sequence[Point], counter: str, *, over: timedelta) -> list[tuple[datetime, float]]:
    """How fast a counter grew up to each point but the first: since the point before, or over a stretch of time.

    After a node's restart it counts from 0 again.
    """
    grown = [0]
    for before, after in itertools.pairwise(points):
        old, new = getattr(before, counter), getattr(after, counter)
        grown.append(grown[-1] + (new - old if new >= old else new))
    rates, first = [], 0
    for index in range(1, len(points)):
        at = points[index].at
        while first < index - 1 and points[first].at < at - over:
            first += 1
        rates.append((at, (grown[index] - grown[first]) / (at - points[first].at).total_seconds()))
    return rates


def gauge(points: Sequence[Point], name: str) -> list[tuple[datetime, float]]:
    return [(point.at, float(getattr(point, name))) for point in points]


def total(series: Iterable[Sequence[tuple[datetime, float]]]) -> list[tuple[datetime, float]]:
    """The sum of several series, moment by moment."""
    sums: dict[datetime, float] = defaultdict(float)
    for one in series:
        for at, value in one:
            sums[at] += value
    return sorted(sums.items())


def _every_fourth(now: datetime, seconds: float) -> list[Any]:
    step = 4 * seconds
    last = interval_end(now, step)
    return [last - timedelta(seconds=step * back) for back in range(int(SHOWN.total_seconds() // step) + 1)]
