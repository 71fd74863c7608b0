"""Two heads that share everything that heads share, and what they left in the database and in Redis."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from redis import Redis

from tests import processes
from tests.postgres import Cluster
from tests.processes import Served, wait_until
from tests.redis_server import REQUIRED, Server
from tests.toy_mesh import ToyMesh

DATABASE = "shared_heads"
#: For tests that take longer than all the others of these heads together.
LONG = pytest.mark.skipif(
    os.environ.get(REQUIRED) != "all", reason="set MESHNET_POSTGRESQL_TESTS=all (make test-postgresql)"
)
#: A stream says so soon that it lives, in seconds: no test waits for longer.
QUIET = 0.3
PRELOAD = f"""
import django
whole = django.setup
def setup(*args, **options):
    whole(*args, **options)
    import generation.answer  # not before: it has models
    generation.answer.SILENCE_SECONDS = {QUIET}
django.setup = setup
"""
#: Keys with limits, each for one test.
KEYS = {
    "seven a minute": {"requests_per_minute": 7},
    "three at once": {"concurrent_generations": 3},
    "a day": {"tokens_per_day": 1000},
    "of a killed head": {"concurrent_generations": 2},
    "without Redis": {"requests_per_minute": 1000},
}
PEOPLE = """
from django.contrib.auth.models import User
from django.test import Client
from generation.models import APIKey
made = {name: APIKey.objects.create_key(name=name, **fields) for name, fields in keys.items()}
client = Client()
client.force_login(User.objects.create_superuser("operator", password="opens-it"))
result = {name: (row.prefix, key) for name, (row, key) in made.items()}, client.cookies["sessionid"].value
"""
CSRF = "t" * 32


@dataclass
class Stream:
    """A streamed answer that is read event by event, over a connection of its own."""

    connection: http.client.HTTPConnection
    response: http.client.HTTPResponse

    @property
    def status(self) -> int:
        return self.response.status

    def event(self) -> str:
        """The next event or comment; empty at the end."""
        lines = []
        while (line := self.response.readline().decode().strip()) or not lines:
            if not line and self.response.isclosed():
                return ""
            if line:
                lines.append(line)
        return "\n".join(lines)

    def text_event(self) -> str:
        """The next piece of text."""
        while event := self.event():
            if event.startswith("data: {"):
                chunk = json.loads(event.removeprefix("data: "))
                text = chunk["choices"][0]["delta"].get("content") if chunk.get("choices") else None
                if text:
                    return str(text)
        return ""

    def rest(self) -> list[str]:
        events = []
        with contextlib.suppress(http.client.IncompleteRead, ConnectionError):
            while event := self.event():
                events.append(event)
        return events

    def close(self) -> None:
        """The client goes away."""
        self.response.close()
        self.connection.close()


@dataclass
class TwoHeads:
    heads: list[Served]
    key: str
    mesh: ToyMesh
    cluster: Cluster
    server: Server
    #: Prefix and key by name.
    keys: dict[str, tuple[str, str]]
    #: Of the admin.
    session: str

    def body(self, tokens: int, *, stream: bool = False, **more: Any) -> dict[str, Any]:
        return {
            "model": self.mesh.model.name,
            "messages": [{"role": "user", "content": "Tell me about nodes."}],
            "max_tokens": tokens,
            "temperature": 0,
            "stream": stream,
            **more,
        }

    def ask(self, url: str, *, key: str = "", tokens: int = 4, **more: Any) -> tuple[int, dict[str, str], bytes]:
        """A whole answer, over a new connection; headers in small letters."""
        headers = {"Authorization": f"Bearer {key or self.key}", "Connection": "close"}
        status, found, body = processes.call(
            f"{url}/v1/chat/completions", "POST", self.body(tokens, **more), headers, timeout=60
        )
        return status, {name.lower(): value for name, value in found.items()}, body

    @contextmanager
    def stream(self, url: str, *, key: str = "", tokens: int = 40, **more: Any) -> Iterator[Stream]:
        """Its client goes away at the end, if not before."""
        connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
        connection.request(
            "POST",
            "/v1/chat/completions",
            json.dumps(self.body(tokens, stream=True, **more)),
            {"Authorization": f"Bearer {key or self.key}", "Content-Type": "application/json"},
        )
        with contextlib.closing(connection), connection.getresponse() as response:
            yield Stream(connection, response)

    def page(self, url: str, form: dict[str, Any] | None = None) -> tuple[int, str]:
        """A page of the admin, or what a form that is sent to it is answered."""
        headers = {
            "Cookie": f"sessionid={self.session}; csrftoken={CSRF}",
            "X-CSRFToken": CSRF,
            "Content-Type": "application/x-www-form-urlencoded",
        }
        data = None if form is None else urlencode(form, doseq=True).encode()
        status, _, body = processes.call(url, "GET" if data is None else "POST", data, headers)
        return status, body.decode()

    def query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with self.cluster.connect(DATABASE) as connection:
            return connection.execute(sql, values).fetchall()

    def bury(self, owner: str) -> None:
        """Time is moved on for one head that was killed: 31 s in which it gave no sign."""
        self.query(
            "UPDATE generation_headworker SET beat_at = beat_at - interval '31 s' WHERE boot_id = %s RETURNING id",
            owner,
        )
        with self.redis() as redis:
            for entry in redis.scan_iter("meshnet:limits:*:leases"):
                for lease in redis.zrange(entry, 0, -1):
                    if str(lease).startswith(f"{owner}:"):
                        redis.zincrby(entry, -31_000_000, lease)

    def running(self) -> list[tuple[str, str]]:
        """Session and owner of the generations under way, the newest first."""
        sql = "SELECT session_id, owner FROM generation_generation WHERE status = 'running' ORDER BY id DESC"
        return [(str(session), str(owner)) for session, owner in self.query(sql)]

    def generations(self) -> int:
        ((count,),) = self.query("SELECT count(*) FROM generation_generation")
        return int(count)

    def status(self, session: str) -> str:
        ((status,),) = self.query("SELECT status FROM generation_generation WHERE session_id = %s", session)
        return str(status)

    @contextmanager
    def redis(self) -> Iterator[Redis]:
        with self.server.client() as client:
            yield client

    def evict(self) -> None:
        """What a killed head left on the nodes: they would keep it until its TTL."""
        for node in self.mesh.nodes:
            processes.call(f"{node.url}/sessions/evict", "POST", {"all": True}, processes.secret_header())

    def leases(self, prefix: str) -> list[str]:
        with self.redis() as redis:
            return [str(lease) for lease in redis.zrange(f"meshnet:limits:{{{prefix}}}:leases", 0, -1)]


def head(folder: Path, mesh: ToyMesh, cluster: Cluster, server: Server, **environ: str) -> Served:
    """One more head on the same database and Redis, not yet started."""
    served = processes.head(
        folder,
        mesh.model,
        mesh.urls,
        DATABASE_URL=cluster.url(DATABASE),
        MESHNET_CACHE_URL=server.url,
        MESHNET_LOG_LEVEL="DEBUG",
        **environ,
    )
    served.preload = PRELOAD
    return served


@contextmanager
def running_heads(mesh: ToyMesh, cluster: Cluster, server: Server, folder: Path) -> Iterator[TwoHeads]:
    cluster.new_database(DATABASE)
    heads = [head(folder / name, mesh, cluster, server) for name in ("one", "two")]
    key = processes.prepare_head(heads[0])
    keys, session = processes.in_django(heads[0], f"keys = {KEYS!r}\n{PEOPLE}")
    with processes.serving(*heads):
        yield TwoHeads(heads, key, mesh, cluster, server, keys, session)
        wait_until(mesh.is_idle, 10, "nodes still hold sessions")
