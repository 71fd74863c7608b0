from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from nodes import live
from nodes.kv_statistics import EVICTION_REASONS, MISS_REASONS
from nodes.live import NodeSnapshot
from nodes.metrics import NodesCollector
from tests.unit.nodes.conftest import MakeNode
from tests.unit.nodes.fake_node import FakeNode, session_id

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(*snapshots: NodeSnapshot, by_node: bool = True) -> Samples:
    """The samples by name and labels, read from the text as Prometheus reads it."""
    registry = CollectorRegistry()
    registry.register(NodesCollector(snapshots, model="toy", by_node=by_node))
    text = generate_latest(registry).decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[f"meshnet:{name}", frozenset(labels.items())]


def seen(status: dict[str, Any] | None = None, **sessions: Any) -> NodeSnapshot:
    return NodeSnapshot("http://one", {"state": "ready", **(status or {})}, {"sessions": [], **sessions}, None, "ready")


def test_every_number_of_a_node_has_its_metric() -> None:
    snapshot = seen(
        {
            "rss_bytes": 5000,
            "work": {
                "steps": {"prefill": 2, "decode": 9, "stateless": 1},
                "tokens": 40,
                "compute_ms": 1500.0,
                "queue_ms": 250.0,
            },
        },
        limits={"max_sessions": 8, "max_bytes": 1000},
        stats={
            "sessions": 3,
            "bytes": 250,
            "hits": 9,
            "prefills": 4,
            "misses": {"unknown_session": 2, "past_len_mismatch": 0},
            "evictions": {"lru": 1, "operator": 5},
            "high_water_sessions": 6,
            "high_water_bytes": 700,
        },
    )
    samples = scrape(snapshot, by_node=False)
    expected = {
        "node_up": 1, "node_draining": 0, "kv_sessions": 3, "kv_sessions_limit": 8, "kv_bytes": 250,
        "kv_bytes_limit": 1000, "kv_sessions_high_water": 6, "kv_bytes_high_water": 700,
        "resident_memory_bytes": 5000, "kv_hits_total": 9, "kv_prefills_total": 4, "node_tokens_total": 40,
    }  # fmt: skip
    assert {name: value(samples, name) for name in expected} == expected
    assert value(samples, "kv_cache_usage_perc", model_name="toy") == 0.25
    assert value(samples, "kv_misses_total", reason="unknown_session") == 2
    assert value(samples, "kv_evictions_total", reason="operator") == 5
    assert value(samples, "node_steps_total", mode="decode") == 9
    assert value(samples, "node_seconds_total", part="compute") == 1.5
    assert value(samples, "node_seconds_total", part="queue") == 0.25


def test_a_heads_samples_name_their_nodes_and_a_dead_node_is_down(front: FakeNode, dead: str, clients: Any) -> None:
    front.hold(session_id("a"))
    samples = scrape(*live.fetch(clients(front, dead)))
    assert value(samples, "node_up", node=front.url) == 1
    assert value(samples, "node_up", node=dead) == 0
    assert value(samples, "kv_sessions", node=front.url) == 1
    # Nothing else is said of a node that was not heard: an old number could be taken for a new one.
    assert [name for name, labels in samples if ("node", dead) in labels] == ["meshnet:node_up"]


def test_no_session_is_in_the_text(front: FakeNode, clients: Any) -> None:
    front.hold(session_id("a"))
    registry = CollectorRegistry()
    registry.register(NodesCollector(live.fetch(clients(front)), model="toy", by_node=True))
    assert session_id("a") not in generate_latest(registry).decode()


def test_a_draining_node_says_so(make_node: MakeNode, clients: Any) -> None:
    node = make_node()
    node.state = "draining"
    assert value(scrape(*live.fetch(clients(node))), "node_draining", node=node.url) == 1


@pytest.mark.parametrize("nonsense", [None, True, "many", float("nan"), float("inf"), -1, 10**400, [], {}])
def test_what_is_no_number_is_left_out(nonsense: Any) -> None:
    status = {
        "rss_bytes": nonsense,
        "work": {"steps": {"decode": nonsense}, "tokens": nonsense, "compute_ms": nonsense},
    }
    stats = {"sessions": nonsense, "bytes": nonsense, "misses": {"unknown_session": nonsense}, "evictions": nonsense}
    samples = scrape(seen(status, stats=stats, limits={"max_bytes": nonsense, "max_sessions": nonsense}))
    assert {name for name, _ in samples} == {"meshnet:node_up", "meshnet:node_draining"}


@pytest.mark.parametrize("part", ["work", "steps"])
@pytest.mark.parametrize("nonsense", [None, 7, "x", [1]])
def test_work_of_another_shape_is_left_out(part: str, nonsense: Any) -> None:
    work = nonsense if part == "work" else {"steps": nonsense}
    assert ("meshnet:node_up", frozenset({("node", "http://one")})) in scrape(seen({"work": work}))


def test_a_node_cannot_make_up_series() -> None:
    """However many reasons a node invents, they are one series."""
    invented = {f"reason{number}": 1 for number in range(1000)}
    samples = scrape(seen(stats={"evictions": {**invented, "lru": 3}, "misses": invented}))
    reasons = {dict(labels).get("reason") for name, labels in samples if "kv_" in name}
    assert reasons <= {*EVICTION_REASONS, *MISS_REASONS, "other"}
    assert value(samples, "kv_evictions_total", node="http://one", reason="other") == 1000


def test_a_budget_of_nothing_is_no_division() -> None:
    assert not [name for name, _ in scrape(seen(stats={"bytes": 5}, limits={"max_bytes": 0})) if "usage" in name]
