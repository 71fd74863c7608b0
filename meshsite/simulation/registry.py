"""Nodes that announce themselves to heads over one database: the real announcer, `accept` and fleet.

Beats come in virtual time; what each costs is measured in real time, which does not pass in the virtual one: a head
that is busy is no later. HTTP is not in it: `over_http_ms` is measured with Django's test client, server and network
left out.
"""

from __future__ import annotations

import json
import random
import secrets
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, cast

from django.apps import apps
from django.conf import settings
from django.db import connection
from django.test import Client
from django.test.utils import override_settings

from meshsite.simulation.database import Statements
from meshsite.simulation.registry_head import EPOCH, RegistryHead, announcement_of
from meshsite.simulation.series import percentile
from meshsite.simulation.virtual_time import VirtualTime
from nodes import announcements
from nodes.announcer import LONGEST_PAUSE_SECONDS, HeadVoice
from nodes.apps import NodesConfig
from nodes.models import Node


def announcing(
    nodes: int, heads: int, beats: int, seed: int = 1, *, say: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """All nodes start at once, beat a while, and find their heads again after those were gone for half a minute.

    Needs the default database for itself. Leaves no row.
    """
    config = cast(NodesConfig, apps.get_app_config("nodes"))
    before = config.verifications, config.announced
    try:
        with override_settings(MESHNET_NODE_NETWORKS=["10.0.0.0/8"], MESHNET_PLAIN_HTTP=True, MESHNET_NODES=[]):
            return _announcing(nodes, heads, beats, seed, config, say)
    finally:
        config.verifications, config.announced = before
        Node.objects.all().delete()


def _announcing(
    nodes: int, heads: int, beats: int, seed: int, config: NodesConfig, say: Callable[[str], None]
) -> dict[str, Any]:
    clock, statements = VirtualTime(), Statements()
    beat = float(settings.MESHNET_ANNOUNCE_SECONDS)
    workers = [RegistryHead(f"http://10.255.0.{number}:8000", clock, config) for number in range(heads)]
    stopped = False

    def voice(head: RegistryHead, index: int) -> None:
        rng = random.Random(f"{seed} {index} {head.url}")  # noqa: S311  # nothing secret
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
        beating = _beating(workers, statements, beats * beat)
        roster_ms = _timed(lambda: announcements.roster(EPOCH + timedelta(seconds=clock.now())))
        say("… and come back to heads that were gone.")
        back = _restart(clock, workers, nodes, beat)
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
        "core_seconds_per_head": round(sum(head.core_ms for head in workers) / 1e3 / len(workers), 2),
        "real_seconds": round(time.perf_counter() - begun, 2),
    }


def _beating(workers: list[RegistryHead], statements: Statements, seconds: float) -> dict[str, Any]:
    costs = [ms for head in workers for ms in head.costs_ms]
    each = len(costs)
    rate = each / seconds
    write_ms = sum(statements.writes) / each
    return {
        "beats_measured": each,
        "beats_per_second": round(rate, 1),
        "most_in_a_second": max(_most_in_a_second(head.beats_at) for head in workers),
        "statements_per_beat": round((len(statements.reads) + len(statements.writes)) / each, 2),
        "ms_per_beat": round(statistics.median(costs), 3),
        "ms_per_beat_p99": round(percentile(costs, 99), 3),
        "write_ms_per_beat": round(write_ms, 3),
        "core_share_per_head": round(sum(head.core_ms for head in workers) / 1e3 / seconds / len(workers), 3),
        "write_lock_share": round(write_ms / 1e3 * rate, 3),
    }


def _restart(clock: VirtualTime, workers: list[RegistryHead], nodes: int, beat: float) -> dict[str, Any]:
    """Half a minute without any head; then the nodes' pauses decide who comes when, the longest one at most."""
    for head in workers:
        head.is_down = True
    clock.run(clock.now() + 30.0)
    verified = sum(head.verified for head in workers)
    back_at = clock.now()
    for head in workers:
        head.is_down = False
        head.heard.clear()
        head.first_heard.clear()
    clock.run(back_at + max(beat, LONGEST_PAUSE_SECONDS) + 5.0)
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
