"""`/metrics` of real processes: a node's own, and a head's with two workers that must answer as one."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests import processes
from tests.processes import SECRET, Served, wait_until
from tests.proxies import Proxy, proxy_to
from tests.toy_mesh import ToyMesh, get_json

TOKEN = "a-token-for-whoever-scrapes"
MARKER = "zebrafinch"

Samples = dict[str, float]


def scrape_text(url: str) -> str:
    status, headers, body = processes.call(f"{url}/metrics", headers={"Connection": "close"})
    assert status == 200, body
    assert headers["Content-Type"].startswith("text/plain; version=")
    return body.decode()


def scrape(url: str) -> Samples:
    """The samples as Prometheus reads them, by name and labels."""
    return {
        sample.name.removeprefix("meshnet:")
        + "".join(f" {name}={value}" for name, value in sorted(sample.labels.items()) if name != "model_name"): (
            sample.value
        )
        for family in text_string_to_metric_families(scrape_text(url))
        for sample in family.samples
    }


def counters(samples: Samples) -> Samples:
    return {
        name: value
        for name, value in samples.items()
        if name.partition(" ")[0].endswith(("_total", "_bucket", "_count", "_sum"))
    }


@dataclass
class TwoWorkers:
    """A head of its own over the toy mesh's nodes; steps to the first node go through `proxy`."""

    head: Served
    key: str
    model: str
    proxy: Proxy
    workers: list[int]

    def chat(self, *, max_tokens: int = 8, stream: bool = False) -> bytes:
        status, _, body = processes.call(
            f"{self.head.url}/v1/chat/completions",
            "POST",
            {
                "model": self.model,
                "messages": [{"role": "user", "content": f"hello {MARKER}"}],
                "max_tokens": max_tokens,
                "temperature": 0,
                "stream": stream,
            },
            {"Authorization": f"Bearer {self.key}", "Connection": "close"},
            timeout=60,
        )
        assert status == 200, body
        return body

    @contextlib.contextmanager
    def only(self, worker: int) -> Iterator[None]:
        """The other worker is held, so that new connections can go to this one alone."""
        others = [pid for pid in self.workers if pid != worker]
        try:
            wait_until(lambda: self._held(others), 20, "a held worker keeps the database locked each time")
            yield
        finally:
            for pid in others:
                os.kill(pid, signal.SIGCONT)

    def _held(self, workers: list[int]) -> bool:
        """Holds them; lets them go on again when one of them was in the middle of a write."""
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        with contextlib.closing(sqlite3.connect(self.head.folder / "meshnet.sqlite3", timeout=0)) as database:
            try:
                database.execute("BEGIN IMMEDIATE")
                return True
            except sqlite3.OperationalError:
                for pid in workers:
                    os.kill(pid, signal.SIGCONT)
                return False

    def scrape_each(self) -> list[Samples]:
        """What each worker answers, one after the other."""
        found = []
        for worker in self.workers:
            with self.only(worker):
                found.append(scrape(self.head.url))
        return found


def worker_pids(head: Served) -> list[int]:
    pids: list[int] = processes.in_django(
        head,
        "from generation.models import HeadWorker\n"
        "result = list(HeadWorker.objects.order_by('pid').values_list('pid', flat=True))\n",
    )
    return pids


@contextlib.contextmanager
def head_with_two_workers(mesh: ToyMesh, folder: Path) -> Iterator[TwoWorkers]:
    with proxy_to(mesh.nodes[0].port) as proxy:
        head = processes.head(
            folder,
            mesh.model,
            [proxy.url, mesh.nodes[1].url],
            GUNICORN_CMD_ARGS="-w 2",
            MESHNET_METRICS_TOKEN=TOKEN,
        )
        key = processes.prepare_head(head)
        with processes.serving(head):
            wait_until(lambda: head.log.read_text().count("Ready to serve") == 2, 60, "there are no two workers")
            yield TwoWorkers(head, key, mesh.model.name, proxy, worker_pids(head))


@pytest.fixture(scope="module")
def shared_head(toy_mesh: ToyMesh, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoWorkers]:
    with head_with_two_workers(toy_mesh, tmp_path_factory.mktemp("metrics") / "head") as head:
        yield head


@pytest.fixture
def two_workers(shared_head: TwoWorkers, toy_mesh: ToyMesh) -> Iterator[TwoWorkers]:
    """One head for the whole file: nothing is left on the nodes, its steps are not slowed down."""
    yield shared_head
    shared_head.proxy.delay = lambda: None
    wait_until(toy_mesh.is_idle, 10, "the nodes still hold a session")


def test_every_worker_answers_the_counts_of_all(two_workers: TwoWorkers, toy_mesh: ToyMesh) -> None:
    first, second = two_workers.workers
    before = two_workers.scrape_each()[0]
    for worker, chats in ((first, 2), (second, 1)):
        with two_workers.only(worker):
            for _ in range(chats):
                two_workers.chat(max_tokens=8)
    wait_until(toy_mesh.is_idle, 5, "the nodes still hold a session")
    answers = two_workers.scrape_each()
    assert counters(answers[0]) == counters(answers[1])
    after = answers[0]
    grown = {name: value - before.get(name, 0.0) for name, value in counters(after).items()}
    expected = {
        "generation_tokens_total": 24,
        "request_success_total finished_reason=length": 3,
        "time_to_first_token_seconds_count": 3,
        "inter_token_latency_seconds_count": 21,
        "e2e_request_latency_seconds_count": 3,
        "reprefill_total": 0,
        "failover_total": 0,
    }
    assert {name: grown[name] for name in expected} == expected
    assert grown["prompt_tokens_total"] > 0
    for url in (two_workers.proxy.url, toy_mesh.nodes[1].url):
        assert grown[f"hop_steps_total node={url}"] == 24
        assert grown[f"hop_seconds_total node={url} part=compute"] > 0
        assert grown[f"kv_evictions_total node={url} reason=released"] == 3
    assert (after["num_requests_running"], after["num_requests_waiting"], after["layers_online_min"]) == (0, 0, 1)


def test_f03_twenty_scrapes_in_a_row_never_go_back(two_workers: TwoWorkers) -> None:
    """While chats run and whichever worker answers: no counter falls, those that the nodes keep among them."""
    done = threading.Event()

    def talk() -> None:
        while not done.is_set():
            two_workers.chat(max_tokens=6)

    thread = threading.Thread(target=talk)
    thread.start()
    try:
        last = counters(scrape(two_workers.head.url))
        for _ in range(20):
            now = counters(scrape(two_workers.head.url))
            assert {name: (value, now.get(name)) for name, value in last.items() if now.get(name, -1.0) < value} == {}
            last = now
    finally:
        done.set()
        thread.join()


def test_a_running_generation_counts_once_and_not_after_its_worker_was_killed(
    toy_mesh: ToyMesh, tmp_path: Path
) -> None:
    with head_with_two_workers(toy_mesh, tmp_path / "head") as two_workers:
        first = two_workers.workers[0]
        two_workers.proxy.delay = lambda: threading.Event().wait(0.05)

        def stream() -> None:
            with contextlib.suppress(OSError, http.client.HTTPException):  # cut off in the middle
                two_workers.chat(max_tokens=400, stream=True)

        thread = threading.Thread(target=stream)
        with two_workers.only(first):
            thread.start()
            wait_until(lambda: len(two_workers.proxy.steps()) > 30, 20)
        answers = two_workers.scrape_each()
        assert [answer["num_requests_running"] for answer in answers] == [1, 1]
        tokens = answers[1]["generation_tokens_total"]
        assert tokens > 0, "a running generation shows before its end"
        os.kill(first, signal.SIGKILL)
        thread.join(30)

        def settled() -> Samples | None:
            found = scrape(two_workers.head.url)
            return found if found["num_requests_running"] == 0 else None

        after = wait_until(settled, 30, "a dead worker's generation counts as running")
        assert after["generation_tokens_total"] >= tokens, "what a dead worker counted stays"
    for node in toy_mesh.nodes:  # nobody is left who would release it
        processes.call(f"{node.url}/sessions/evict", "POST", {"all": True}, processes.secret_header())


def test_no_session_no_key_and_no_prompt_is_in_the_metrics(two_workers: TwoWorkers, toy_mesh: ToyMesh) -> None:
    held = threading.Event()
    sessions: set[str] = set()
    two_workers.proxy.delay = lambda: held.wait(0.02)
    thread = threading.Thread(target=lambda: two_workers.chat(max_tokens=200, stream=True))
    thread.start()
    try:
        sessions = wait_until(
            lambda: {row["id"] for node in toy_mesh.nodes for row in get_json(f"{node.url}/sessions")["sessions"]}, 20
        )
        texts = [scrape_text(url) for url in (two_workers.head.url, *(node.url for node in toy_mesh.nodes))]
    finally:
        held.set()
        thread.join()
    assert sessions
    secrets = {*sessions, two_workers.key, two_workers.key[:12], SECRET, SECRET[:12], TOKEN, MARKER}
    for text in texts:
        assert "meshnet:kv_sessions" in text
        assert [secret for secret in secrets if secret in text] == []


def test_a_node_answers_its_own_numbers(toy_mesh: ToyMesh) -> None:
    node = toy_mesh.nodes[0]
    before = scrape(node.url)
    toy_mesh.client.chat.completions.create(
        model=toy_mesh.model.name, messages=[{"role": "user", "content": "hello"}], max_tokens=6, temperature=0
    )
    wait_until(toy_mesh.is_idle, 5)
    after = scrape(node.url)
    grown = {name: after[name] - before.get(name, 0.0) for name in counters(after)}
    assert (grown["node_steps_total mode=prefill"], grown["node_steps_total mode=decode"]) == (1, 5)
    assert grown["kv_hits_total"] == 5
    assert grown["kv_evictions_total reason=released"] == 1
    assert grown["node_seconds_total part=compute"] > 0
    assert (after["kv_sessions"], after["kv_bytes"], after["kv_cache_usage_perc"]) == (0, 0, 0)
    said = get_json(f"{node.url}/sessions")["stats"]
    assert after["kv_prefills_total"] == said["prefills"]


@pytest.mark.parametrize("role", ["node", "head"])
def test_who_is_not_on_this_machine_needs_the_token(two_workers: TwoWorkers, toy_mesh: ToyMesh, role: str) -> None:
    url = two_workers.head.url if role == "head" else toy_mesh.nodes[0].url

    def ask(method: str = "GET", **headers: str) -> int:
        return processes.call(f"{url}/metrics", method, headers=headers)[0]

    forwarded = {"X-Forwarded-For": "127.0.0.1"}
    assert ask() == 200
    assert ask(**forwarded) == 401
    assert ask(**forwarded, Authorization="Bearer wrong-token-altogether") == 401
    assert ask(**forwarded, Authorization=f"Bearer {SECRET}") == 401
    assert ask(**forwarded, Authorization=f"Bearer {TOKEN}") == (200 if role == "head" else 401)
    assert ask("POST") == 405


def test_role_all_answers_for_the_head_and_its_own_layers(toy_mesh: ToyMesh, tmp_path: Path) -> None:
    both = processes.head(
        tmp_path / "all", toy_mesh.model, [toy_mesh.nodes[1].url], MESHNET_ROLE="all", MESHNET_LAYERS="0:2"
    )
    both.config = "gunicorn_node.py"
    key = processes.prepare_head(both)
    with processes.serving(both):
        status, _, answer = processes.call(
            f"{both.url}/v1/chat/completions",
            "POST",
            {"model": toy_mesh.model.name, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4},
            {"Authorization": f"Bearer {key}"},
        )
        assert status == 200
        samples = scrape(both.url)
        tokens = json.loads(answer)["usage"]["completion_tokens"]
        assert samples["generation_tokens_total"] == tokens
        assert samples["kv_prefills_total node=local:"] == 1
        assert samples[f"node_up node={toy_mesh.nodes[1].url}"] == 1
        assert samples["hop_steps_total node=local:"] > 0


def test_the_folder_of_the_workers_goes_with_the_head(toy_mesh: ToyMesh, tmp_path: Path) -> None:
    head = processes.head(tmp_path / "head", toy_mesh.model, [node.url for node in toy_mesh.nodes])
    processes.prepare_head(head)
    folder = head.folder / "metrics"

    def own() -> list[Path]:
        return [path for path in folder.iterdir() if path.is_dir()]

    with processes.serving(head):
        assert len(own()) == 1
    assert own() == []
