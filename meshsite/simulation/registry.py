"""Nodes that announce themselves to heads over one database: the real announcer, `accept` and fleet.

Beats come in virtual time; what each costs is measured in real time. HTTP is not in it: `over_http_ms` is measured
with Django's test client, server and network left out.
"""

from __future__ import annotations

import json
import random
import secrets
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from threading import BoundedSemaphore
from typing import Any, cast

from django.apps import apps
from django.conf import settings
from django.db import connection
from django.test import Client
from django.test.utils import override_settings

from meshsite.simulation.database import Statements
from meshsite.simulation.mesh import url_of
from meshsite.simulation.series import percentile
from meshsite.simulation.virtual_time import VirtualTime
from nodes import announcements
from nodes.announcement import Announcement
from nodes.announcer import HeadVoice
from nodes.apps import MOST_VERIFICATIONS, NodesConfig
from nodes.errors import MeshnetError, NodeUnreachable
from nodes.fleet import NodeFleet
from nodes.layers import LayerRange, split_evenly
from nodes.models import Node

_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
#: What the question to a new node takes: a trip each way and its answer.
VERIFY_SECONDS = 0.02
N_LAYERS, STRETCHES = 80, 5


class _Known:
    """Stands for a client in a fleet."""

    def __init__(self, url: str) -> None:
        self.url = url

    def tidy(self) -> None:
        """There are no connections."""


class RegistryHead:
    """A head worker as nodes announce themselves to it."""

    def __init__(self, url: str, time: VirtualTime, config: NodesConfig) -> None:
        self.url = url
        self.is_down = False
        self.fleet = NodeFleet([], cast(Any, _Known))
        self.costs_ms: list[float] = []
        self.core_ms = 0.0  # of this process, beats without a verification alone
        self.refusals: dict[str, int] = {}
        self.heard: dict[str, float] = {}  # last
        self.first_heard: dict[str, float] = {}
        self.beats_at: list[float] = []
        self.verified = 0
        self._turns = BoundedSemaphore(MOST_VERIFICATIONS)
        self._time = time
        self._config = config

    def announce(self, body: dict[str, Any], *, timeout: float) -> dict[str, Any]:
        if self.is_down:
            raise NodeUnreachable(f"{self.url} cannot be reached")
        announcement = Announcement.from_json(body)
        # What this process's head would be.
        self._config.verifications, self._config.announced = self._turns, self.fleet.add
        waited = 0.0

        def ask(url: str) -> dict[str, Any]:
            nonlocal waited
            self.verified += 1
            begun = time.perf_counter()
            self._time.wait(VERIFY_SECONDS)
            waited = time.perf_counter() - begun
            self._config.announced = self.fleet.add
            return {
                "boot_id": announcement.boot_id,
                "fingerprint": announcement.fingerprint,
                "dtype": announcement.dtype,
                "start_layer": announcement.layers.start,
                "end_layer": announcement.layers.end,
            }

        now = _EPOCH + timedelta(seconds=self._time.now())
        begun, core = time.perf_counter(), time.process_time()
        try:
            row = announcements.accept(announcement, announcement.url.split("/")[2].split(":")[0], now=now, ask=ask)
        except MeshnetError as error:
            self.refusals[error.code] = self.refusals.get(error.code, 0) + 1
            raise
        finally:
            self.costs_ms.append((time.perf_counter() - begun - waited) * 1e3)
            self.core_ms += 0.0 if waited else (time.process_time() - core) * 1e3
        self.heard[row.url] = self._time.now()
        self.first_heard.setdefault(row.url, self._time.now())
        self.beats_at.append(self._time.now())
        return {"url": row.url, "beat_seconds": settings.MESHNET_ANNOUNCE_SECONDS}


def announcement_of(index: int, count: int) -> Announcement:
    stretch: LayerRange = split_evenly(N_LAYERS, STRETCHES)[index % STRETCHES]
    return Announcement(
        boot_id=f"boot-id-{index:08}",
        model="simulated",
        fingerprint="simulated",
        layers=stretch,
        n_layers=N_LAYERS,
        dtype="float32",
        context_length=4096,
        state="ready",
        max_sessions=8,
        max_bytes=2 * 1024**3,
        sessions=index % 8,
        bytes=0,
        version="0",
        url=url_of(index),
    )


def announcing(nodes: int, heads: int, beats: int, *, say: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """All nodes start at once, beat a while, and find their heads again after those were gone for half a minute.

    Needs the default database for itself. Leaves no row.
    """
    config = cast(NodesConfig, apps.get_app_config("nodes"))
    before = config.verifications, config.announced
    try:
        with override_settings(MESHNET_NODE_NETWORKS=["10.0.0.0/8"], MESHNET_PLAIN_HTTP=True, MESHNET_NODES=[]):
            return _announcing(nodes, heads, beats, config, say)
    finally:
        config.verifications, config.announced = before
        Node.objects.all().delete()


def _announcing(nodes: int, heads: int, beats: int, config: NodesConfig, say: Callable[[str], None]) -> dict[str, Any]:
    clock, statements = VirtualTime(), Statements()
    beat = float(settings.MESHNET_ANNOUNCE_SECONDS)
    workers = [RegistryHead(f"http://10.255.0.{number}:8000", clock, config) for number in range(heads)]
    stopped = False

    def voice(head: RegistryHead, index: int) -> None:
        rng = random.Random(f"{index} {head.url}")  # noqa: S311  # nothing secret
        one = HeadVoice(head, partial(announcement_of, index, nodes), beat, rng=rng)
        while not stopped:
            clock.wait(one.turn())

    for index in range(nodes):
        for head in workers:
            clock.start(partial(voice, head, index))
    with connection.execute_wrapper(statements.note):
        say(f"{nodes} nodes start at once, {heads} heads …")
        storm = _storm(clock, workers, nodes)
        _clear(workers, statements)
        say("… and beat …")
        clock.run(clock.now() + beats * beat)
        beating = _beating(workers, statements, nodes, heads, beat)
        roster_ms = _timed(lambda: announcements.roster(_EPOCH + timedelta(seconds=clock.now())))
        say("… and come back to heads that were gone.")
        back = _restart(clock, workers, nodes)
    stopped = True
    clock.run()
    return {
        "nodes": nodes,
        "heads": heads,
        "database": connection.vendor,
        **beating,
        "over_http_ms": _over_http_ms(nodes, min(200, nodes)),
        "roster_ms": roster_ms,
        "storm": storm,
        "after_restart": back,
    }


def _storm(clock: VirtualTime, workers: list[RegistryHead], nodes: int) -> dict[str, Any]:
    begun, started = time.perf_counter(), clock.now()
    while any(len(head.heard) < nodes for head in workers):
        clock.run(clock.now() + 1.0)
        if clock.now() - started > 600:
            raise RuntimeError("The nodes never got to know their heads.")
    all_heard = max(at for head in workers for at in head.first_heard.values())
    return {
        "seconds": round(all_heard, 1),
        "verified": sum(head.verified for head in workers),
        "refused_as_busy": sum(head.refusals.get("busy", 0) for head in workers),
        "requests": sum(len(head.costs_ms) for head in workers),
        "real_seconds": round(time.perf_counter() - begun, 2),
    }


def _beating(
    workers: list[RegistryHead], statements: Statements, nodes: int, heads: int, beat: float
) -> dict[str, Any]:
    costs = [ms for head in workers for ms in head.costs_ms]
    each = len(costs)
    rate = nodes * heads / beat
    write_ms = sum(statements.writes) / each
    return {
        "beats_measured": each,
        "beats_per_second": round(rate, 1),
        "most_in_a_second": max(_most_in_a_second(head.beats_at) for head in workers),
        "statements_per_beat": round((len(statements.reads) + len(statements.writes)) / each, 2),
        "ms_per_beat": round(statistics.median(costs), 3),
        "ms_per_beat_p99": round(percentile(costs, 99), 3),
        "write_ms_per_beat": round(write_ms, 3),
        "core_share_per_head": round(sum(head.core_ms for head in workers) / each / 1e3 * nodes / beat, 3),
        "write_lock_share": round(write_ms / 1e3 * rate, 3),
    }


def _restart(clock: VirtualTime, workers: list[RegistryHead], nodes: int) -> dict[str, Any]:
    """Half a minute without any head; then the nodes' pauses decide who comes when."""
    for head in workers:
        head.is_down = True
    clock.run(clock.now() + 30.0)
    verified = sum(head.verified for head in workers)
    back_at = clock.now()
    for head in workers:
        head.is_down = False
        head.heard.clear()
        head.first_heard.clear()
    clock.run(back_at + 15.0)
    arrivals = sorted(at - back_at for head in workers for at in head.first_heard.values())
    return {
        "known_again": sum(len(head.heard) for head in workers),
        "of": nodes * len(workers),
        "half_after_seconds": round(percentile(arrivals, 50), 2),
        "all_after_seconds": round(max(arrivals, default=0.0), 2),
        "most_in_a_second": _most_in_a_second(arrivals),
        "verified": sum(head.verified for head in workers) - verified,
    }


def _clear(workers: list[RegistryHead], statements: Statements) -> None:
    statements.clear()
    for head in workers:
        head.costs_ms.clear()
        head.core_ms = 0.0
        head.beats_at.clear()


def _over_http_ms(nodes: int, rounds: int) -> float:
    """One beat through Django's middleware and view, body parsed: what gunicorn's thread does."""
    secret = secrets.token_urlsafe(24)
    with override_settings(MESHNET_SECRET=secret, ALLOWED_HOSTS=["testserver"]):
        client = Client(headers={"Authorization": f"Bearer {secret}"})
        costs = []
        for index in range(rounds):
            body = json.dumps(announcement_of(index, nodes).as_json())
            begun = time.perf_counter()
            answer = client.post("/mesh/announce", body, content_type="application/json")
            costs.append((time.perf_counter() - begun) * 1e3)
            if answer.status_code != 200:
                raise RuntimeError(f"A beat was answered {answer.status_code}: {answer.content[:200]!r}")
    return round(statistics.median(costs), 3)


def _most_in_a_second(times: Sequence[float]) -> int:
    return max(Counter(int(at) for at in times).values(), default=0)


def _timed(what: Callable[[], object]) -> float:
    costs = []
    for _ in range(5):
        begun = time.perf_counter()
        what()
        costs.append((time.perf_counter() - begun) * 1e3)
    return round(statistics.median(costs), 2)
