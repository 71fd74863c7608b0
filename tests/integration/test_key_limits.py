"""Limits of API keys over several workers and processes: exactly the limit passes, whoever asks whom."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import processes
from tests.postgres import Cluster
from tests.processes import Served, wait_until
from tests.toy_mesh import ToyMesh

#: Processes that race, and threads of each.
PROCESSES, THREADS = 2, 16
#: Each thread asks until it was refused, or let in so many times.
RACE = """
import threading
from collections import Counter
from django.db import connection
from generation.errors import RateLimitExceeded
from django.apps import apps
from generation.models import APIKey

limits, key = apps.get_app_config("generation").limits, APIKey.objects.get(prefix=prefix)
ready, counts = threading.Barrier(threads), Counter()

def ask():
    ready.wait()
    for _ in range(tries):
        try:
            limits.admit(key, owner=owner)
            counts["admitted"] += 1
        except RateLimitExceeded:
            counts["refused"] += 1
        except Exception as error:
            counts[repr(error)] += 1
    connection.close()

racing = [threading.Thread(target=ask) for _ in range(threads)]
[thread.start() for thread in racing]
[thread.join() for thread in racing]
result = dict(counts)
"""
NEW_KEY = """
from django.utils import timezone
from generation.models import APIKey, HeadWorker
row, key = APIKey.objects.create_key(name="limited", **fields)
for number in range(owners):
    HeadWorker.objects.create(
        boot_id=f"owner-{number}", hostname="h", pid=1, started_at=timezone.now(), beat_at=timezone.now()
    )
result = row.prefix, key
"""


def new_key(head: Served, *, owners: int = 0, **fields: Any) -> tuple[str, str]:
    """Prefix and key."""
    made: tuple[str, str] = processes.in_django(head, f"fields, owners = {fields!r}, {owners}\n{NEW_KEY}")
    return made


@pytest.fixture(params=["sqlite", "postgresql", "redis"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Served:
    """A head that is not started, for its migrated database."""
    environ: dict[str, str] = {}
    if request.param == "postgresql":
        cluster: Cluster = request.getfixturevalue("postgres")
        environ["DATABASE_URL"] = cluster.new_database(f"limits_{tmp_path.name.lower()}"[:60])
    if request.param == "redis":
        environ["MESHNET_CACHE_URL"] = request.getfixturevalue("redis_server").url
    head = processes.head(tmp_path, tmp_path, [], **environ)
    processes.prepare_head(head)
    return head


@pytest.mark.parametrize("limit", [{"requests_per_minute": 21}, {"concurrent_generations": 21}])
def test_of_threads_that_race_in_two_processes_exactly_as_many_as_the_limit_pass(
    database: Served, limit: dict[str, int]
) -> None:
    prefix, _ = new_key(database, owners=PROCESSES, **limit)
    with ThreadPoolExecutor(PROCESSES) as pool:
        results = pool.map(
            lambda n: processes.in_django(
                database, f"prefix, owner, threads, tries = {prefix!r}, 'owner-{n}', {THREADS}, 2\n{RACE}"
            ),
            range(PROCESSES),
        )
        counts = sum((Counter(result) for result in results), Counter[str]())
    assert counts == {"admitted": 21, "refused": PROCESSES * THREADS * 2 - 21}


@dataclass
class Limited:
    """A head of two workers, and how to ask it over new connections, which both workers take."""

    head: Served
    model: str

    def ask(self, key: str, *, stream: bool = False, tokens: int = 4) -> tuple[int, dict[str, str], bytes]:
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": "Tell me about nodes."}],
            "max_tokens": tokens,
            "temperature": 0,
            "stream": stream,
        }
        headers = {"Authorization": f"Bearer {key}", "Connection": "close"}
        return processes.call(f"{self.head.url}/v1/chat/completions", "POST", body, headers, timeout=60)

    def rows(self, code: str) -> Any:
        return processes.in_django(self.head, f"from generation.models import *\nresult = {code}\n")


@pytest.fixture(scope="module")
def limited(toy_mesh: ToyMesh, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Limited]:
    head = processes.head(
        tmp_path_factory.mktemp("limited"), toy_mesh.model, toy_mesh.urls, GUNICORN_CMD_ARGS="-w 2"
    )  # fmt: skip
    processes.prepare_head(head)
    with processes.serving(head):
        wait_until(lambda: head.log.read_text().count("Ready to serve") == 2, 60)
        yield Limited(head, toy_mesh.model.name)


def test_f03_requests_per_minute_hold_exactly_over_two_workers(limited: Limited) -> None:
    prefix, key = new_key(limited.head, requests_per_minute=5)
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: limited.ask(key), range(16)))
    assert Counter(status for status, _, _ in answers) == {200: 5, 429: 11}
    for status, headers, body in answers:
        headers = {name.lower(): value for name, value in headers.items()}
        assert headers["x-ratelimit-limit-requests"] == "5"
        if status == 429:
            assert json.loads(body)["error"]["code"] == "rate_limit_exceeded"
            assert 1 <= int(headers["retry-after"]) <= 60
    left = sorted(
        int(value)
        for status, headers, _ in answers
        for name, value in headers.items()
        if status == 200 and name.lower() == "x-ratelimit-remaining-requests"
    )
    assert left == [0, 1, 2, 3, 4]
    owners = limited.rows(f"len(set(KeyRequest.objects.filter(api_key__prefix={prefix!r}).values_list('owner')))")
    assert owners in (1, 2)


def test_f03_generations_at_once_hold_over_two_workers_and_end_with_their_answers(
    limited: Limited, toy_mesh: ToyMesh
) -> None:
    prefix, key = new_key(limited.head, concurrent_generations=3)
    running = f"sum(KeyRequest.objects.filter(api_key__prefix={prefix!r}).values_list('running', flat=True))"
    with toy_mesh.proxy.holding():
        statuses: list[int] = []
        threads = [threading.Thread(target=lambda: statuses.append(limited.ask(key, stream=True)[0])) for _ in range(9)]
        for thread in threads:
            thread.start()
        # Those that were let in are held back at the first node; the others are told at once.
        wait_until(lambda: len(statuses) == 6, 30)
        assert (set(statuses), limited.rows(running)) == ({429}, 3)
    for thread in threads:
        thread.join()
    assert Counter(statuses) == {200: 3, 429: 6}
    for _ in range(4):  # one after the other: each finds its slot free
        assert limited.ask(key, stream=True)[0] == 200
    assert limited.rows(running) == 0


def test_what_both_workers_generated_adds_up_to_the_keys_day(limited: Limited) -> None:
    prefix, key = new_key(limited.head)
    with ThreadPoolExecutor(8) as pool:
        answers = [json.loads(body) for _, _, body in pool.map(lambda _: limited.ask(key, tokens=3), range(12))]
    expected = (
        12,
        sum(answer["usage"]["prompt_tokens"] for answer in answers),
        sum(answer["usage"]["completion_tokens"] for answer in answers),
    )
    usage = (
        f"list(KeyUsage.objects.filter(api_key__prefix={prefix!r})"
        ".values_list('requests', 'prompt_tokens', 'completion_tokens'))"
    )

    def counted() -> bool:
        days = limited.rows(usage)
        return tuple(map(sum, zip(*days, strict=True))) == expected  # midnight may lie between

    wait_until(counted, 10)


def test_a_key_that_has_used_its_day_is_refused_by_both_workers(limited: Limited) -> None:
    prefix, key = new_key(limited.head, tokens_per_day=10)
    assert limited.ask(key)[0] == 200
    wait_until(lambda: limited.rows(f"KeyUsage.objects.filter(api_key__prefix={prefix!r}).exists()"), 10)
    answers = [limited.ask(key) for _ in range(6)]
    assert {status for status, _, _ in answers} == {429}
    assert {json.loads(body)["error"]["code"] for _, _, body in answers} == {"insufficient_quota"}
