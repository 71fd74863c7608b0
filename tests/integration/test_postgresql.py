"""Several heads and workers on one PostgreSQL: same truth everywhere, nothing held, nothing written per token."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import processes
from tests.postgres import Cluster, running_cluster
from tests.processes import ROOT, Served, wait_until
from tests.toy_mesh import ToyMesh, get_json

DATABASE = "heads"
CHATS = 200
STREAMS = 10
RUNNING = "SELECT count(*) FROM generation_generation WHERE status = 'running'"
#: Four keepers at once, whose rounds each write a hundred nodes in an order of their own.
KEEPERS, ROUNDS = 4, 60
KEEPER = """
import random
from generation.keeper import Keeper
from nodes.live import NodeSnapshot
from nodes.models import Node

order = random.Random(seed)
urls = [f"http://127.0.0.1:{port}" for port in range(1, 101)]

def fetch(clients):
    order.shuffle(urls)
    return [NodeSnapshot(url, {"boot_id": f"boot-{seed}"}, None, None, "ready") for url in urls]

keeper = Keeper(f"keeper-{seed}", [], fetch=fetch)
for _ in range(rounds):
    keeper.tick()
result = Node.objects.count()
"""


@dataclass
class TwoHeads:
    """Two heads with two workers each on one database, over the same nodes, which each names in its own order."""

    heads: list[Served]
    key: str
    mesh: ToyMesh
    cluster: Cluster

    def query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with self.cluster.connect(DATABASE) as connection:
            return connection.execute(sql, values).fetchall()

    def number(self, sql: str) -> int:
        ((value,),) = self.query(sql)
        return int(value)

    def chat(self, head: Served, tokens: int, *, stream: bool = False) -> bytes:
        status, _, body = processes.call(
            f"{head.url}/v1/chat/completions",
            "POST",
            {
                "model": self.mesh.model.name,
                "messages": [{"role": "user", "content": "Tell me about nodes."}],
                "max_tokens": tokens,
                "temperature": 0,
                "stream": stream,
            },
            {"Authorization": f"Bearer {self.key}", "Connection": "close"},
            timeout=60,
        )
        assert status == 200, body
        return body

    def text(self, head: Served, tokens: int) -> str:
        return str(json.loads(self.chat(head, tokens))["choices"][0]["message"]["content"])

    def connections(self) -> set[int]:
        """Backends that serve a head at this moment."""
        return {
            pid
            for (pid,) in self.query(
                "SELECT pid FROM pg_stat_activity WHERE datname = %s AND application_name = 'meshnet'", DATABASE
            )
        }

    def connections_held(self) -> set[int]:
        """Those that are there for longer than any query takes: keepers and watches come and go."""
        held = self.connections()
        until = time.monotonic() + 0.5
        while held and time.monotonic() < until:
            held &= self.connections()
        return held

    def writes(self) -> int:
        """Rows of generations written since the database was made, once nothing runs any more."""
        wait_until(lambda: not self.number(RUNNING), 10)
        wait_until(lambda: not self.connections_held(), 10)  # counts come with the end of a connection
        return self.number(
            "SELECT n_tup_ins + n_tup_upd + n_tup_del FROM pg_stat_user_tables WHERE relname = 'generation_generation'"
        )


@pytest.fixture(scope="module")
def two_heads(toy_mesh: ToyMesh, postgres: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoHeads]:
    environ = {"DATABASE_URL": postgres.new_database(DATABASE), "GUNICORN_CMD_ARGS": "-w 2"}
    folder = tmp_path_factory.mktemp("heads")
    heads = [
        processes.head(folder / name, toy_mesh.model, urls, **environ)
        for name, urls in (("one", toy_mesh.urls), ("two", toy_mesh.urls[::-1]))
    ]
    key = processes.prepare_head(heads[0])
    with processes.serving(*heads):
        for head in heads:
            wait_until(lambda head=head: head.log.read_text().count("Ready to serve") == 2, 60)  # type: ignore[misc]
        two_heads = TwoHeads(heads, key, toy_mesh, postgres)
        yield two_heads
        deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        assert two_heads.number(deadlocks) == 0, postgres.log
    for head in heads:
        assert "failed:" not in head.log.read_text(), "a keeper's round failed"


def announce(head: Served, url: str, status: dict[str, Any]) -> None:
    """The node's beat, as itself would send it."""
    body = {
        "url": url,
        **{name: status[name] for name in ("boot_id", "model", "fingerprint", "layers", "n_layers", "dtype")},
        "context_length": status["context_length"],
        "state": "ready",
        "capacity": {"max_sessions": 8, "max_bytes": 2**31},
        "load": {"sessions": 0, "bytes": 0},
        "version": status["versions"]["meshnet"],
    }
    code, _, answer = processes.call(f"{head.url}/mesh/announce", "POST", body, processes.secret_header())
    assert code == 200, answer


def test_f05_chats_announcements_keepers_and_pages_at_once_leave_one_row_each(two_heads: TwoHeads) -> None:
    """200 chats over both heads while nodes announce themselves to both and operators list what there is."""
    expected = two_heads.text(two_heads.heads[0], 6)
    before = two_heads.number("SELECT count(*) FROM generation_generation")
    nodes = {url: get_json(f"{url}/status") for url in two_heads.mesh.urls}
    over = threading.Event()

    def announcing(head: Served) -> int:
        beats = 0
        while not over.wait(0.02):
            for url, status in nodes.items():
                announce(head, url, status)
                beats += 1
        return beats

    def listing() -> int:
        # What the admin's lists and the totals above them read, while rows come and end.
        rounds = 0
        while not over.wait(0.02):
            two_heads.query("SELECT status, count(*) FROM generation_generation GROUP BY status")
            rounds += 1
        return rounds

    with ThreadPoolExecutor(14) as threads:
        background = [threads.submit(announcing, head) for head in two_heads.heads * 2] + [threads.submit(listing)]
        try:
            texts = list(threads.map(lambda n: two_heads.text(two_heads.heads[n % 2], 6), range(CHATS)))
        finally:
            over.set()
        assert all(task.result() > 10 for task in background), "nothing happened beside the chats"
    assert texts == [expected] * CHATS
    ended = "SELECT count(*) FROM generation_generation WHERE status = 'done'"
    wait_until(lambda: two_heads.number(ended) == before + CHATS, 10, "not every row has ended as done")
    workers = two_heads.query("SELECT owner, count(*) FROM generation_generation GROUP BY owner")
    assert len(workers) == 4, "some worker served nothing: this run shows less than it should"
    assert sorted(two_heads.query("SELECT url FROM nodes_node")) == sorted((url,) for url in two_heads.mesh.urls)
    assert two_heads.number("SELECT count(*) FROM generation_headworker") == 4
    wait_until(lambda: not two_heads.connections_held(), 10, "connections stay after the chats")


def test_both_heads_show_the_same_nodes(two_heads: TwoHeads) -> None:
    lists = [
        processes.in_django(
            head,
            "from nodes.models import Node\n"
            "result = list(Node.objects.values_list('url', 'boot_id', 'start_layer', 'end_layer'))\n",
        )
        for head in two_heads.heads
    ]
    assert lists[0] == lists[1]
    assert {row[1] for row in lists[0]} == {get_json(f"{url}/status")["boot_id"] for url in two_heads.mesh.urls}


def test_f06_open_streams_hold_no_connection(two_heads: TwoHeads) -> None:
    with ThreadPoolExecutor(STREAMS) as threads:
        # Steps are held back at the first node: no stream comes further than its first token.
        with two_heads.mesh.proxy.holding():
            streams = [threads.submit(two_heads.chat, two_heads.heads[n % 2], 8, stream=True) for n in range(STREAMS)]
            wait_until(lambda: two_heads.number(RUNNING) == STREAMS, 20, "the streams have not begun")
            wait_until(lambda: not two_heads.connections_held(), 10, "streams hold connections")
            assert two_heads.number(RUNNING) == STREAMS
        assert all(stream.result().endswith(b"data: [DONE]\n\n") for stream in streams)


def test_f05_a_long_answer_writes_as_often_as_a_short_one(two_heads: TwoHeads) -> None:
    written = [two_heads.writes()]
    for tokens in (2, 200):
        two_heads.chat(two_heads.heads[0], tokens)
        written.append(two_heads.writes())
    assert [after - before for before, after in itertools.pairwise(written)] == [2, 2]


def test_keepers_that_know_nodes_in_other_orders_never_wait_in_a_circle(postgres: Cluster, tmp_path: Path) -> None:
    """Each keeper's statement locks all rows one after the other: only a common order keeps them apart."""
    head = processes.head(tmp_path, Path("none"), [], DATABASE_URL=postgres.new_database("keepers"))
    processes.prepare_head(head)
    with ThreadPoolExecutor(KEEPERS) as threads:
        counts = list(
            threads.map(lambda n: processes.in_django(head, f"seed, rounds = {n}, {ROUNDS}\n{KEEPER}"), range(KEEPERS))
        )
    assert counts == [100] * KEEPERS
    assert "deadlock detected" not in postgres.log


def test_f05_a_database_that_goes_away_costs_rows_and_no_answer(
    postgres: Cluster, toy_mesh: ToyMesh, tmp_path: Path
) -> None:
    with running_cluster(postgres.binaries) as cluster:
        head = processes.head(tmp_path, toy_mesh.model, toy_mesh.urls, DATABASE_URL=cluster.new_database(DATABASE))
        lone = TwoHeads([head], processes.prepare_head(head), toy_mesh, cluster)
        with processes.serving(head), ThreadPoolExecutor(1) as threads:
            whole = lone.text(head, 20)
            wait_until(lambda: lone.number(RUNNING) == 0, 10, "the first answer's row has not ended")
            with toy_mesh.proxy.holding():
                answer = threads.submit(lone.text, head, 20)
                wait_until(lambda: lone.number(RUNNING) == 1, 10, "the answer has not begun")
                cluster.stop()
            assert answer.result(30) == whole
            with pytest.raises(AssertionError, match="server_error"):
                lone.text(head, 20)
            cluster.start()
            assert lone.text(head, 20) == whole, "the head goes on as it is, once the database is back"


@pytest.mark.timeout(600)
@pytest.mark.skipif(
    os.environ.get("MESHNET_POSTGRESQL_TESTS") != "all",
    reason="set MESHNET_POSTGRESQL_TESTS=all (make test-postgresql)",
)
def test_tests_of_the_database_pass_on_postgresql_too(postgres: Cluster) -> None:
    """The unit tests marked `django_db`, once more: in a process of their own, on this cluster."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "MESHNET_"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-m", "django_db", "-p", "no:cacheprovider", "tests/unit"],
        cwd=ROOT,
        env={**environ, "DATABASE_URL": postgres.new_database("unit")},
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
    assert "database: postgresql" in done.stdout
    passed = re.search(r"(\d+) passed,? .*in ", done.stdout)
    assert passed is not None, done.stdout[-2000:]
    assert int(passed[1]) > 600
