"""What a head counts, as Prometheus metrics, and what it answers to a scrape.

Names carry the suffixes that dashboards for vLLM use, with its label `model_name`. With several workers each counts
in files of its own that the library adds up (decision 0009), so that every worker answers the same. What nodes say is
asked anew for each scrape: from answers that each worker remembered for itself, a counter would go back and forth.
"""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from nodes import live
from nodes.coverage import Serves, cover
from nodes.metrics import PREFIX, NodesCollector

if TYPE_CHECKING:
    from generation.job import HopTimes, LoopSettings, Progress
    from generation.runtime import HeadRuntime
    from nodes.live import NodeSnapshot

logger = logging.getLogger(__name__)

#: Where the library keeps its files; set by the gunicorn master of a head before its workers import the library.
FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
#: A scrape waits for its nodes this long, in seconds: below the 2 s that dead nodes may cost, the rest is for writing.
SCRAPE_DEADLINE_SECONDS = 1.5
#: A running generation's counts are handed over this often, in seconds.
FLUSH_SECONDS = 1.0

FinishedReason = Literal["stop", "length", "abort", "error"]
FINISHED_REASONS: tuple[FinishedReason, ...] = ("stop", "length", "abort", "error")
PARTS = ("compute", "queue", "network")

_FIRST_TOKEN_BUCKETS = (0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160)
_INTER_TOKEN_BUCKETS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5, 5, 10)
_LATENCY_BUCKETS = (0.25, 0.5, 1, 2.5, 5, 10, 15, 20, 30, 60, 120, 240, 480, 960)


class HeadMetrics:
    """The counts of one head worker. One per process where several workers count together."""

    def __init__(self, model: str) -> None:
        if os.environ.get(FOLDER_VARIABLE) and not counts_with_the_other_workers():
            raise RuntimeError("prometheus_client was imported before its folder was named: workers cannot add up.")
        prometheus_client.disable_created_metrics()
        #: Holds this worker's counts alone; unused where the workers' files are read together.
        self.registry = CollectorRegistry()
        labelled = functools.partial(self._make, ("model_name",), model)
        self._running = labelled(
            Gauge, "num_requests_running", "Generations that hold their slots.", multiprocess_mode="livesum"
        )
        self._waiting = labelled(
            Gauge,
            "num_requests_waiting",
            "Generations that wait for slots or for their first step.",
            multiprocess_mode="livesum",
        )
        self.prompt_tokens = labelled(Counter, "prompt_tokens", "Tokens of prompts that were taken in.")
        self.generation_tokens = labelled(Counter, "generation_tokens", "Tokens of answers.")
        self.first_token = labelled(
            Histogram, "time_to_first_token_seconds", "Arrival to first token.", buckets=_FIRST_TOKEN_BUCKETS
        )
        self.inter_token = labelled(
            Histogram,
            "inter_token_latency_seconds",
            "One token to the next, repairs included.",
            buckets=_INTER_TOKEN_BUCKETS,
        )
        self.latency = labelled(
            Histogram,
            "e2e_request_latency_seconds",
            "Arrival to end of generations that ended well.",
            buckets=_LATENCY_BUCKETS,
        )
        finished = self._make(
            ("model_name", "finished_reason"), None, Counter, "request_success", "Generations that ended, by how."
        )
        # Made now, so that a rate over the first of a kind is right: it was 0 before.
        self.finished = {reason: finished.labels(model, reason) for reason in FINISHED_REASONS}
        self.reprefills = labelled(
            Counter, "reprefill", "Prefills of a text whose caches were there before and were lost."
        )
        self.failovers = labelled(Counter, "failover", "Routes planned anew because a node failed.")
        self._hop_seconds = self._make(
            ("node", "part"), None, Counter, "hop_seconds", "Time of steps, as the head saw them, by node and part."
        )
        self._hop_steps = self._make(("node",), None, Counter, "hop_steps", "Steps answered, by node.")

    def _make(self, labels: tuple[str, ...], value: str | None, kind: Any, name: str, help: str, **options: Any) -> Any:
        metric = kind(PREFIX + name, help, labels, registry=self.registry, **options)
        return metric if value is None else metric.labels(value)

    def load(self, running: int, waiting: int) -> None:
        """How many generations run and wait in this worker now. Never raises."""
        _safely(lambda: (self._running.set(running), self._waiting.set(waiting)))

    def hop(self, node: str, steps: int, milliseconds: dict[str, float]) -> None:
        """More steps on a node, and where their time went."""
        self._hop_steps.labels(node).inc(steps)
        for part, more in milliseconds.items():
            self._hop_seconds.labels(node, part).inc(max(0.0, more) / 1e3)


class GenerationObserver:
    """Carries what one generation does over into the head's counts, about once a second and at its end.

    Belongs to the loop's thread. Never raises: a count is not worth an answer.
    """

    def __init__(
        self,
        metrics: HeadMetrics,
        progress: Progress,
        prompt_tokens: int,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._metrics = metrics
        self._progress = progress
        self._prompt_tokens = prompt_tokens
        self._clock = clock
        self._flushed_at = progress.started
        self._last_token_at: float | None = None
        self._gaps: list[float] = []
        self._tokens = 0
        self._reprefills = 0
        self._failovers = 0
        self._hops: dict[str, HopTimes] = {}

    def admitted(self) -> None:
        """The first piece of the prompt went through every node. Called once."""
        _safely(lambda: self._metrics.prompt_tokens.inc(self._prompt_tokens))

    def token(self) -> None:
        """The loop has just counted a token. Costs no more than an append, but for one call a second."""
        now = self._progress.last_token_at
        if now is None:
            return
        if self._last_token_at is not None:
            self._gaps.append(now - self._last_token_at)
        self._last_token_at = now
        if now - self._flushed_at >= FLUSH_SECONDS:
            self.flush(now)

    def ended(self, reason: FinishedReason) -> None:
        """The generation is over. Called once."""
        now = self._clock()
        self.flush(now)
        _safely(lambda: self._end(reason, now))

    def flush(self, now: float) -> None:
        self._flushed_at = now
        _safely(self._flush)

    def _end(self, reason: FinishedReason, now: float) -> None:
        self._metrics.finished[reason].inc()
        if reason in ("stop", "length"):
            self._metrics.latency.observe(now - self._progress.started)

    def _flush(self) -> None:
        """Hands over what came since the last time."""
        progress, metrics = self._progress, self._metrics
        if not self._tokens and progress.time_to_first_token is not None:
            metrics.first_token.observe(progress.time_to_first_token)
        tokens, self._tokens = progress.completion_tokens - self._tokens, progress.completion_tokens
        metrics.generation_tokens.inc(tokens)
        gaps, self._gaps = self._gaps, []
        for gap in gaps:
            metrics.inter_token.observe(gap)
        reprefills, self._reprefills = progress.reprefills - self._reprefills, progress.reprefills
        metrics.reprefills.inc(reprefills)
        failovers, self._failovers = progress.failovers - self._failovers, progress.failovers
        metrics.failovers.inc(failovers)
        for url, times in progress.hops.items():
            before = self._hops.get(url)
            now = times.copy()
            self._hops[url] = now
            metrics.hop(
                url,
                now.steps - (before.steps if before else 0),
                {
                    part: getattr(now, f"{part}_ms") - (getattr(before, f"{part}_ms") if before else 0.0)
                    for part in PARTS
                },
            )


def exposition(runtime: HeadRuntime) -> bytes:
    """What a head answers to a scrape, within SCRAPE_DEADLINE_SECONDS and a little. Reads no database."""
    snapshots = live.fetch(runtime.clients, deadline=SCRAPE_DEADLINE_SECONDS)
    # A registry of its own for each scrape: nothing that one leaves behind can reach the next.
    registry = CollectorRegistry()
    if counts_with_the_other_workers():
        MultiProcessCollector(registry)
    else:
        registry.register(runtime.metrics.registry)
    registry.register(NodesCollector(snapshots, model=runtime.model, by_node=True))
    usable = [snapshot for snapshot in snapshots if snapshot.url not in runtime.directory.removed]
    registry.register(_CoverageCollector(usable, runtime.settings, runtime.model))
    return generate_latest(registry)


class _CoverageCollector(Collector):
    """How well the layers of the head's model are held right now."""

    def __init__(self, snapshots: list[NodeSnapshot], settings: LoopSettings, model: str) -> None:
        self._snapshots = snapshots
        self._settings = settings
        self._model = model

    def collect(self) -> Iterable[Metric]:
        settings = self._settings
        coverage = cover(
            self._snapshots,
            serves=Serves(settings.fingerprint, settings.dtype, settings.n_layers),
            context_length=settings.context_length,
        )
        family = GaugeMetricFamily(
            f"{PREFIX}layers_online_min",
            "Ready nodes that hold the layer that the fewest hold; 0 when no generation can run.",
            labels=["model_name"],
        )
        if coverage is not None:
            family.add_metric([self._model], coverage.layers_online_min)
        yield family


def counts_with_the_other_workers() -> bool:
    """Whether the library was imported after the folder was set: it decides then, once, where counts are kept."""
    from prometheus_client import values

    return bool(values.ValueClass._multiprocess)


def _safely(step: Callable[[], object]) -> None:
    try:
        step()
    except Exception:  # a full disk, say: the library's files grow with the first use of a label
        logger.exception("Metrics could not be counted.")
