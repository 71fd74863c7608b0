"""What nodes say of themselves, as Prometheus metrics: a node's own, and on a head those of all its nodes.

Read at the moment of the scrape from what a node keeps anyway; nothing is counted twice and nothing is remembered
here. Labels are URLs of configured nodes and words from fixed lists: a node cannot make up series, and no session
ever becomes a label.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from nodes.kv_statistics import EVICTION_REASONS, MISS_REASONS
from nodes.live import NodeSnapshot
from nodes.step_statistics import MODES

if TYPE_CHECKING:
    from nodes.runtime import NodeRuntime

PREFIX = "meshnet:"
#: Where a newer node gives a reason that is not known here.
OTHER = "other"


class NodesCollector(Collector):
    """The families of nodes as they were seen. With `by_node` each sample names its node; a node leaves that to
    whoever scrapes it, who knows its address better. `model` is what this process serves, whatever the nodes say.
    """

    def __init__(self, snapshots: Sequence[NodeSnapshot], *, model: str, by_node: bool) -> None:
        self._snapshots = snapshots
        self._model = model
        self._by_node = by_node

    def collect(self) -> Iterable[Metric]:
        return families(self._snapshots, model=self._model, by_node=self._by_node)


def own_exposition(runtime: NodeRuntime) -> bytes:
    """What a node answers to a scrape."""
    state: Any = "draining" if runtime.is_draining else "ready"
    snapshot = NodeSnapshot("", runtime.status(), runtime.sessions(), None, state)
    registry = CollectorRegistry()
    registry.register(NodesCollector([snapshot], model=runtime.identity.model, by_node=False))
    return generate_latest(registry)


def families(snapshots: Sequence[NodeSnapshot], *, model: str, by_node: bool) -> list[Metric]:
    """One family per metric, with the samples of all nodes that said the number."""
    gauges = _Families(GaugeMetricFamily, by_node)
    counters = _Families(CounterMetricFamily, by_node)
    for snapshot in snapshots:
        _gauges(gauges, snapshot, model)
        _counters(counters, snapshot)
    return [*gauges.made.values(), *counters.made.values()]


def _gauges(add: _Families, snapshot: NodeSnapshot, model: str) -> None:
    stats, limits, status = snapshot.stats, snapshot.limits, snapshot.status or {}
    add("node_up", "1 when the node answered this scrape.", snapshot.url, int(snapshot.status is not None))
    if snapshot.status is not None:
        add("node_draining", "1 when the node takes no new sessions.", snapshot.url, int(snapshot.state == "draining"))
    add("kv_sessions", "Sessions held.", snapshot.url, stats.get("sessions"))
    add("kv_sessions_limit", "Most sessions that may be held.", snapshot.url, limits.get("max_sessions"))
    add("kv_bytes", "Bytes of cache held.", snapshot.url, stats.get("bytes"))
    add("kv_bytes_limit", "Byte budget of the caches.", snapshot.url, limits.get("max_bytes"))
    # The one metric here that dashboards for vLLM know; they select by the model's name.
    usage, used = "Part of the byte budget in use; 1 is all of it.", _usage(stats, limits)
    add("kv_cache_usage_perc", usage, snapshot.url, used, model_name=model)
    add("kv_sessions_high_water", "Most sessions ever held.", snapshot.url, stats.get("high_water_sessions"))
    add("kv_bytes_high_water", "Most bytes of cache ever held.", snapshot.url, stats.get("high_water_bytes"))
    add("resident_memory_bytes", "Memory of the node's process.", snapshot.url, status.get("rss_bytes"))


def _counters(add: _Families, snapshot: NodeSnapshot) -> None:
    stats, url = snapshot.stats, snapshot.url
    add("kv_hits", "Decode steps that found their cache.", url, stats.get("hits"))
    add("kv_prefills", "Sessions opened, re-prefills included.", url, stats.get("prefills"))
    for reason, count in _known(stats.get("misses"), MISS_REASONS):
        add("kv_misses", "Decode steps that did not find their cache.", url, count, reason=reason)
    for reason, count in _known(stats.get("evictions"), EVICTION_REASONS):
        add("kv_evictions", "Sessions that left, by reason.", url, count, reason=reason)
    work = (snapshot.status or {}).get("work")
    if not isinstance(work, dict):
        return
    for mode, count in _known(work.get("steps"), MODES):
        add("node_steps", "Steps answered.", url, count, mode=mode)
    add("node_tokens", "Positions computed.", url, work.get("tokens"))
    for part in ("compute", "queue"):
        milliseconds: Any = work.get(f"{part}_ms")
        seconds = milliseconds / 1e3 if _is_number(milliseconds) else None
        add("node_seconds", "Time that steps took in the node.", url, seconds, part=part)


class _Families:
    """Families by name, made when their first sample comes. A value that is no number is left out."""

    def __init__(self, kind: type[GaugeMetricFamily] | type[CounterMetricFamily], by_node: bool) -> None:
        self.made: dict[str, Any] = {}
        self._kind = kind
        self._by_node = by_node

    def __call__(self, name: str, help: str, url: str, value: Any, **labels: str) -> None:
        if not _is_number(value):
            return
        node = {"node": url} if self._by_node else {}
        if name not in self.made:
            self.made[name] = self._kind(PREFIX + name, help, labels=[*node, *labels])
        self.made[name].add_metric([*node.values(), *labels.values()], value)


def _known(counts: Any, names: Collection[str]) -> list[tuple[str, float]]:
    """A node's counts by fixed names; all other names together are OTHER."""
    if not isinstance(counts, dict):
        return []
    numbers = {name: count for name, count in counts.items() if _is_number(count)}
    known = [(name, numbers[name]) for name in names if name in numbers]
    rest = sum(count for name, count in numbers.items() if name not in names)
    return [*known, (OTHER, rest)] if rest else known


def _usage(stats: dict[str, Any], limits: dict[str, Any]) -> float | None:
    held, budget = stats.get("bytes"), limits.get("max_bytes")
    if held is None or budget is None or not _is_number(held) or not _is_number(budget) or not budget:
        return None
    return float(held / budget)


def _is_number(value: Any) -> bool:
    # The bound keeps out infinity, and whole numbers that no float can hold.
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e30
