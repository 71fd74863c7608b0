"""A head worker's registry as nodes announce themselves to it: the real `accept` and fleet, in virtual time."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from threading import BoundedSemaphore
from typing import Any, cast

from django.conf import settings

from meshsite.simulation.mesh import url_of
from meshsite.simulation.virtual_time import VirtualTime
from nodes import announcements
from nodes.announcement import Announcement
from nodes.apps import MOST_VERIFICATIONS, NodesConfig
from nodes.errors import MeshnetError, NodeUnreachable
from nodes.fleet import NodeFleet
from nodes.layers import LayerRange, split_evenly

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
#: What the question to a new node takes: a trip each way and its answer. A head allows 2.5 s.
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
        self.core_ms = 0.0  # of this process, while it took announcements
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
        waited = others = 0.0

        def ask(url: str) -> dict[str, Any]:
            nonlocal waited, others
            self.verified += 1
            begun, core = time.perf_counter(), time.process_time()
            self._time.wait(VERIFY_SECONDS)
            waited, others = time.perf_counter() - begun, time.process_time() - core
            self._config.announced = self.fleet.add
            return {
                "boot_id": announcement.boot_id,
                "fingerprint": announcement.fingerprint,
                "dtype": announcement.dtype,
                "start_layer": announcement.layers.start,
                "end_layer": announcement.layers.end,
            }

        now = EPOCH + timedelta(seconds=self._time.now())
        begun, core = time.perf_counter(), time.process_time()
        try:
            row = announcements.accept(announcement, announcement.url.split("/")[2].split(":")[0], now=now, ask=ask)
        except MeshnetError as error:
            self.refusals[error.code] = self.refusals.get(error.code, 0) + 1
            raise
        finally:
            self.costs_ms.append((time.perf_counter() - begun - waited) * 1e3)
            self.core_ms += (time.process_time() - core - others) * 1e3
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
