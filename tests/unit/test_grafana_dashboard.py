"""The shipped dashboard and docs/metrics.md speak of metrics that exist, with labels that these have."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from generation.directory import NodeDirectory
from generation.job import HopTimes, LoopSettings, Progress
from generation.metrics import FLUSH_SECONDS, GenerationObserver, HeadMetrics, exposition
from nodes.kv_statistics import StoreStatistics
from nodes.live import NodeSnapshot
from nodes.metrics import NodesCollector
from nodes.step_statistics import StepStatistics
from nodes.wire import Timings

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = ROOT / "deploy" / "grafana" / "meshnet.json"
METRIC = re.compile(r"meshnet:[a-z0-9_]+")
SELECTED = re.compile(r"(meshnet:[a-z0-9_]+)\{([^}]*)\}")
GROUPED = re.compile(r"\b(?:by|on|without)\s*\(([^)]*)\)")
#: Prometheus adds these to everything that it scrapes.
SCRAPED = {"job", "instance"}


class Node:
    """A node as a head's client sees it, with every number that a node can say."""

    url = "http://one"

    def status(self, *, timeout: float) -> dict[str, Any]:
        statistics = StepStatistics()
        statistics.count("decode", 1, Timings(1.0, 1.0))
        return {
            "state": "ready", "fingerprint": "f", "dtype": "float32", "n_layers": 4, "start_layer": 0, "end_layer": 4,
            "context_length": 512, "rss_bytes": 1, "work": statistics.as_json(),
        }  # fmt: skip

    def sessions(self, *, timeout: float) -> dict[str, Any]:
        return {
            "limits": {"max_sessions": 8, "max_bytes": 100},
            "stats": {"sessions": 0, "bytes": 0, **StoreStatistics().as_json()},
            "sessions": [],
        }


class Head:
    model = "toy"
    settings = LoopSettings("f", "float32", 4, 320, 512)

    def __init__(self) -> None:
        self.clients = [Node()]
        self.directory = NodeDirectory([])
        self.metrics = HeadMetrics("toy")
        progress = Progress(hops={"http://one": HopTimes()})
        GenerationObserver(self.metrics, progress, 1).flush(FLUSH_SECONDS)


def labels_of(text: str) -> dict[str, set[str]]:
    """Each sample's name and the labels that it has."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.fixture(scope="module")
def on_head() -> dict[str, set[str]]:
    return labels_of(exposition(Head()).decode())  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def on_node() -> dict[str, set[str]]:
    node = Node()
    registry = CollectorRegistry()
    snapshot = NodeSnapshot("", node.status(timeout=1), node.sessions(timeout=1), None, "ready")
    registry.register(NodesCollector([snapshot], model="toy", by_node=False))
    return labels_of(generate_latest(registry).decode())


def queries() -> list[str]:
    dashboard = json.loads(DASHBOARD.read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    variables = [variable["definition"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"]
    return expressions + variables


def test_a_head_exports_the_names_that_dashboards_for_vllm_use(on_head: dict[str, set[str]]) -> None:
    names = {
        "num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "prompt_tokens_total",
        "generation_tokens_total", "time_to_first_token_seconds_bucket", "inter_token_latency_seconds_bucket",
        "e2e_request_latency_seconds_bucket", "request_success_total",
    }  # fmt: skip
    assert {f"meshnet:{name}" for name in names} <= set(on_head)
    assert all("model_name" in on_head[f"meshnet:{name}"] for name in names)
    assert "finished_reason" in on_head["meshnet:request_success_total"]


def test_every_query_names_metrics_that_a_head_exports(on_head: dict[str, set[str]]) -> None:
    assert len(queries()) > 30
    for query in queries():
        named = METRIC.findall(query)
        assert named, query
        assert set(named) <= set(on_head), query


def test_every_query_names_labels_that_these_metrics_have(on_head: dict[str, set[str]]) -> None:
    for query in queries():
        for name, selector in SELECTED.findall(query):
            used = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector))
            assert used <= on_head[name] | SCRAPED, query
        known = set[str]().union(*(on_head[name] for name in METRIC.findall(query))) | SCRAPED
        for group in GROUPED.findall(query):
            assert {label.strip() for label in group.split(",")} <= known, query


def test_legends_show_labels_that_are_left_after_the_grouping() -> None:
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            kept = {label.strip() for group in GROUPED.findall(target["expr"]) for label in group.split(",")}
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= kept, target


def test_panels_have_their_own_ids_and_do_not_overlap() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert all(x < 24 for x, _ in cells)


def test_the_page_lists_every_metric_and_no_other(on_head: dict[str, set[str]], on_node: dict[str, set[str]]) -> None:
    def families(names: dict[str, set[str]]) -> set[str]:
        return {re.sub(r"_(bucket|count|sum)$", "", name) for name in names}

    listed = {f"meshnet:{name}" for name in re.findall(r"^\| `([a-z0-9_]+)` \|", _page(), re.MULTILINE)}
    assert listed == families(on_head)
    assert families(on_node) <= listed


def test_the_page_names_the_labels(on_head: dict[str, set[str]]) -> None:
    for name, labels in re.findall(r"^\| `([a-z0-9_]+)` \| \w+ \| (.*?) \|", _page(), re.MULTILINE):
        exported = on_head.get(f"meshnet:{name}") or on_head[f"meshnet:{name}_count"]
        assert set(re.findall(r"`(\w+)`", labels)) == exported - {"le"}, name


def _page() -> str:
    return (ROOT / "docs" / "metrics.md").read_text()
