from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from django.apps import apps
from django.test import Client
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from generation import metrics as head_metrics
from generation.directory import NodeDirectory
from generation.job import HopTimes, LoopSettings, Progress
from generation.metrics import FLUSH_SECONDS, GenerationObserver, HeadMetrics
from nodes.client import HttpNodeClient
from nodes.wire import Timings
from tests.conftest import Clock
from tests.unit.nodes.fake_node import SECRET, FakeNode, dead_url, session_id

Samples = dict[str, float]


def read(text: str) -> Samples:
    """The samples as Prometheus reads them, by name and labels in their order of names."""
    return {
        sample.name.removeprefix("meshnet:")
        + "".join(f" {name}={value}" for name, value in sorted(sample.labels.items()) if name != "model_name"): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class Running:
    """One generation, stepped by hand."""

    def __init__(self, metrics: HeadMetrics, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock
        self.progress = Progress(started=clock())
        self.observer = GenerationObserver(metrics, self.progress, 12, clock=clock)

    def token(self, after: float) -> None:
        self._clock.advance(after)
        progress = self.progress
        progress.completion_tokens += 1
        progress.last_token_at = self._clock()
        progress.first_token_at = progress.first_token_at or self._clock()
        self.observer.token()

    def counted(self) -> Samples:
        return read(generate_latest(self._metrics.registry).decode())


@pytest.fixture
def running(clock: Clock) -> Running:
    return Running(HeadMetrics("toy"), clock)


def test_a_generation_is_counted_when_it_ends(running: Running, clock: Clock) -> None:
    running.observer.admitted()
    for after in (0.2, 0.07, 0.07, 0.4):
        running.token(after)
    clock.advance(0.1)
    running.observer.ended("length")
    samples = running.counted()
    assert samples["prompt_tokens_total"] == 12
    assert samples["generation_tokens_total"] == 4
    assert samples["time_to_first_token_seconds_count"] == 1
    assert samples["time_to_first_token_seconds_sum"] == pytest.approx(0.2)
    assert samples["inter_token_latency_seconds_count"] == 3
    assert samples["inter_token_latency_seconds_sum"] == pytest.approx(0.54)
    assert samples["inter_token_latency_seconds_bucket le=0.075"] == 2
    assert samples["e2e_request_latency_seconds_sum"] == pytest.approx(0.84)
    assert samples["request_success_total finished_reason=length"] == 1
    assert samples["request_success_total finished_reason=stop"] == 0


def test_a_long_generation_shows_before_it_ends(running: Running) -> None:
    running.token(0.2)
    assert running.counted()["generation_tokens_total"] == 0
    running.token(FLUSH_SECONDS)
    assert running.counted()["generation_tokens_total"] == 2
    assert running.counted()["time_to_first_token_seconds_count"] == 1
    running.token(0.2)
    running.observer.ended("stop")
    samples = running.counted()
    assert samples["generation_tokens_total"] == 3
    assert samples["time_to_first_token_seconds_count"] == 1
    assert samples["inter_token_latency_seconds_count"] == 2


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_the_latency_is_of_those_that_ended_well(running: Running, reason: Any) -> None:
    running.token(0.2)
    running.observer.ended(reason)
    samples = running.counted()
    assert samples[f"request_success_total finished_reason={reason}"] == 1
    assert samples["e2e_request_latency_seconds_count"] == 0


def test_one_without_a_token_has_no_first_one(running: Running) -> None:
    running.observer.ended("stop")
    samples = running.counted()
    assert samples["time_to_first_token_seconds_count"] == 0
    assert samples["prompt_tokens_total"] == 0


def test_hops_and_repairs_are_counted_as_they_grow(running: Running) -> None:
    progress = running.progress
    hop = progress.hops.setdefault("http://one", HopTimes())
    hop.add(100.0, Timings(compute_ms=60.0, queue_ms=10.0))
    running.token(FLUSH_SECONDS)
    hop.add(50.0, Timings(compute_ms=40.0, queue_ms=0.0))
    progress.hops.setdefault("http://two", HopTimes()).add(8.0, Timings(compute_ms=5.0, queue_ms=1.0))
    progress.reprefills, progress.failovers = 2, 1
    running.token(FLUSH_SECONDS)
    running.observer.ended("stop")
    samples = running.counted()
    parts = {
        part: samples[f"hop_seconds_total node=http://one part={part}"] for part in ("compute", "queue", "network")
    }
    assert parts == pytest.approx({"compute": 0.1, "queue": 0.01, "network": 0.04})
    assert samples["hop_steps_total node=http://one"] == 2
    assert samples["hop_steps_total node=http://two"] == 1
    assert samples["reprefill_total"] == 2
    assert samples["failover_total"] == 1


def test_a_count_that_fails_costs_no_answer(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    def full(*args: object) -> None:
        raise OSError("No space left on device")

    running._metrics.hop = full  # type: ignore[method-assign]
    running.progress.hops["http://one"] = HopTimes()
    running.token(FLUSH_SECONDS)
    running.observer.ended("stop")
    assert "Metrics could not be counted" in caplog.text
    assert running.counted()["request_success_total finished_reason=stop"] == 1


def test_counting_on_a_library_that_was_imported_too_early_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each worker would answer with its own counts alone, and a rate would jump."""
    monkeypatch.setenv(head_metrics.FOLDER_VARIABLE, "/nowhere")
    with pytest.raises(RuntimeError, match="before its folder was named"):
        HeadMetrics("toy")


# -- the endpoint


@pytest.fixture
def node() -> Iterator[FakeNode]:
    node = FakeNode("0:30")
    yield node
    node.close()


@pytest.fixture
def hanging() -> Iterator[FakeNode]:
    node = FakeNode("0:30", hanging=True)
    yield node
    node.close()


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Any:
    def head(*urls: str) -> SimpleNamespace:
        clients = [HttpNodeClient(url, SECRET) for url in urls]
        runtime = SimpleNamespace(
            model="toy",
            metrics=HeadMetrics("toy"),
            clients=clients,
            directory=NodeDirectory(clients),
            settings=LoopSettings("sha256:toy", "float32", 30, 320, 0),
        )
        monkeypatch.setattr(apps.get_app_config("generation"), "runtime", runtime)
        return runtime

    return head


def scrape(**extra: Any) -> Samples:
    response = Client().get("/metrics", **extra)
    assert response.status_code == 200, response.content
    return read(response.content.decode())


def test_a_scrape_has_the_heads_counts_and_what_its_nodes_say(serve: Any, node: FakeNode) -> None:
    node.hold(session_id("a"))
    serve(node.url).metrics.load(3, 2)
    samples = scrape()
    assert (samples["num_requests_running"], samples["num_requests_waiting"]) == (3, 2)
    assert samples[f"kv_sessions node={node.url}"] == 1
    assert samples["layers_online_min"] == 1


def test_a_scrape_needs_no_database(serve: Any, node: FakeNode) -> None:
    """pytest-django refuses every query of a test that did not ask for the database."""
    serve(node.url)
    assert scrape(HTTP_COOKIE="sessionid=somebody")["layers_online_min"] == 1


def test_dead_and_hanging_nodes_cost_less_than_two_seconds(serve: Any, node: FakeNode, hanging: FakeNode) -> None:
    with dead_url() as dead:
        serve()
        scrape()  # the first request of a process imports all of the head's URLs
        serve(node.url, hanging.url, dead)
        begun = time.monotonic()
        samples = scrape()
        assert time.monotonic() - begun < 2.0
    assert samples[f"node_up node={node.url}"] == 1
    assert samples[f"node_up node={hanging.url}"] == samples[f"node_up node={dead}"] == 0


def test_without_nodes_no_layer_is_online(serve: Any) -> None:
    serve()
    assert scrape()["layers_online_min"] == 0


def test_a_removed_node_covers_nothing(serve: Any, node: FakeNode) -> None:
    serve(node.url).directory.set_removed([node.url])
    samples = scrape()
    assert (samples["layers_online_min"], samples[f"node_up node={node.url}"]) == (0, 1)


def test_a_node_of_another_model_covers_nothing(serve: Any, node: FakeNode) -> None:
    serve(node.url).settings = LoopSettings("sha256:other", "float32", 30, 320, 0)
    assert scrape()["layers_online_min"] == 0


def test_a_scrape_through_a_proxy_needs_the_token(serve: Any, settings: Any) -> None:
    serve()
    settings.MESHNET_METRICS_TOKEN = "a-token-for-whoever-scrapes"
    assert Client().get("/metrics", HTTP_X_FORWARDED_FOR="127.0.0.1").status_code == 401
    with_token = {"HTTP_AUTHORIZATION": "Bearer a-token-for-whoever-scrapes", "HTTP_X_FORWARDED_FOR": "10.0.0.1"}
    assert scrape(**with_token)["layers_online_min"] == 0


def test_a_head_that_loads_has_no_metrics_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apps.get_app_config("generation"), "runtime", None)
    assert Client().get("/metrics").status_code == 503
