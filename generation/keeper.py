"""The keeper: a head worker's background thread that keeps what the database says of the mesh true.

Every few seconds, in this order:

1. it gives a sign of life (its `HeadWorker` row);
2. it marks running generations whose owner is silent or unknown as interrupted;
3. it forgets workers that have been silent for a day;
4. it reads which nodes an operator removed and which have announced themselves to any head worker, and tells its
   head; announced nodes that have been gone for a day are forgotten;
5. it asks all nodes, side by side, and writes what they say of themselves into their `Node` rows (a node that
   is silent keeps what it said last), but not again what another keeper has just written;
6. once per interval it writes a sample of each node's numbers, and deletes old ones.

Each worker does this for all. Nothing is locked: step 2 is one UPDATE that looks again at what it changes,
and the others write the same truth twice, or are ignored when they come second (6). Workers on several machines
need clocks that agree within seconds.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import DatabaseError, InterfaceError, connection
from django.utils import timezone

from generation.models import Generation, HeadWorker
from nodes import announcements, live, samples
from nodes.client import NodeClient
from nodes.live import NodeSnapshot
from nodes.models import Node

logger = logging.getLogger(__name__)

INTERVAL_SECONDS = 5.0
#: An owner that has been silent for this long is taken for dead.
SILENT_AFTER = timedelta(seconds=30)
FORGOTTEN_AFTER = timedelta(days=1)

#: What a node's status overwrites in its row.
_NODE_FIELDS = (
    "boot_id",
    "model_name",
    "fingerprint",
    "start_layer",
    "end_layer",
    "dtype",
    "device",
    "version",
    "seen_at",
)
#: A row that says the same is written again once its `seen_at` is so old: by each worker anew it would be one write a
#: node, worker and tick. Less than an interval, so that a worker that is alone writes at every tick.
_SEEN_AGAIN = timedelta(seconds=INTERVAL_SECONDS / 2)


class Keeper:
    """One per head worker. `start()` before the first generation begins, so that its owner is known.

    `clients` is read at every tick. `clock` gives aware datetimes; `fetch` asks the nodes; `tell_removed` and
    `tell_announced` are given the URLs of the removed and of the announced nodes at every tick. Samples are written
    every `sample_seconds` (None: never) and kept for `sample_retention` seconds.
    """

    def __init__(
        self,
        boot_id: str,
        clients: Sequence[NodeClient],
        *,
        interval: float = INTERVAL_SECONDS,
        clock: Callable[[], datetime] = timezone.now,
        fetch: Callable[[Sequence[NodeClient]], list[NodeSnapshot]] = live.fetch,
        tell_removed: Callable[[Collection[str]], None] | None = None,
        tell_announced: Callable[[Collection[str]], None] | None = None,
        sample_seconds: float | None = None,
        sample_retention: float = 7200.0,
    ) -> None:
        self.boot_id = boot_id
        self._clients = clients
        self._interval = interval
        self._clock = clock
        self._fetch = fetch
        self._tell_removed = tell_removed
        self._tell_announced = tell_announced
        self._sample_seconds = sample_seconds
        self._sample_retention = timedelta(seconds=sample_retention)
        self._sampled_at: datetime | None = None
        self._snapshots: list[NodeSnapshot] = []
        self._started_at = clock()
        self._last_tick: datetime | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="meshnet-keeper", daemon=True)

    def start(self) -> None:
        """Registers the worker and starts the thread, whose first tick is at once. Never raises."""
        self._safely(self._give_sign, self._clock())
        if not connection.in_atomic_block:
            connection.close()  # this thread will not need it again
        self._thread.start()

    def stop(self, *, timeout: float = 5.0) -> None:
        """Ends the thread. The row stays and goes silent, so that what still runs here may end well."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def tick(self) -> None:
        """One round. Steps that fail are logged and leave the others alone."""
        now = self._clock()
        woke_up = self._last_tick is not None and now - self._last_tick > SILENT_AFTER
        self._last_tick = now
        self._safely(self._give_sign, now)
        if not woke_up:
            # After a sleep of the whole machine every other worker looks silent: they get one round to speak.
            self._safely(self._interrupt_orphans, now)
        self._safely(self._forget_workers, now)
        self._safely(self._read_removed, now)
        self._safely(self._read_announced, now)
        self._safely(self._write_nodes, now)
        self._safely(self._write_samples, now)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.tick()
            with contextlib.suppress(DatabaseError, InterfaceError):
                connection.close()  # a waiting thread holds no connection
            self._stopping.wait(self._interval)

    def _safely(self, step: Callable[[datetime], None], now: datetime) -> None:
        try:
            step(now)
        except Exception as error:  # whatever it is, the next round must come
            logger.warning("Keeper: %s failed: %s: %s", step.__name__.strip("_"), type(error).__name__, error)

    def _give_sign(self, now: datetime) -> None:
        HeadWorker.objects.update_or_create(
            boot_id=self.boot_id,
            defaults={"beat_at": now},
            create_defaults={
                "beat_at": now,
                "hostname": socket.gethostname(),
                "pid": os.getpid(),
                "started_at": self._started_at,
            },
        )

    def _interrupt_orphans(self, now: datetime) -> None:
        alive = HeadWorker.objects.filter(beat_at__gt=now - SILENT_AFTER).values("boot_id")
        count = (
            Generation.objects.filter(status=Generation.Status.RUNNING)
            .exclude(owner=self.boot_id)
            .exclude(owner__in=alive)
            .update(
                status=Generation.Status.INTERRUPTED,
                finished_at=now,
                error="The head worker that ran it has gone.",
            )
        )
        if count:
            logger.warning("Keeper: %d generations were interrupted: their workers have gone.", count)

    def _forget_workers(self, now: datetime) -> None:
        HeadWorker.objects.filter(beat_at__lt=now - FORGOTTEN_AFTER).exclude(boot_id=self.boot_id).delete()

    def _read_removed(self, now: datetime) -> None:
        if self._tell_removed is not None:
            self._tell_removed(set(Node.objects.filter(is_removed=True).values_list("url", flat=True)))

    def _read_announced(self, now: datetime) -> None:
        if self._tell_announced is not None:
            self._tell_announced(announcements.roster(now))
            announcements.forget_gone(now)

    def _write_samples(self, now: datetime) -> None:
        snapshots, self._snapshots = self._snapshots, []
        if self._sample_seconds is None or not snapshots:
            return
        at = samples.interval_end(now, self._sample_seconds)
        if at == self._sampled_at:
            return
        samples.write(snapshots, at)
        self._sampled_at = at
        # More than one interval's worth, so that a backlog shrinks.
        samples.delete_older(now - self._sample_retention, most=samples.MOST_DELETED + 2 * len(snapshots))

    def _write_nodes(self, now: datetime) -> None:
        # One list for the whole round: nodes come and go meanwhile. By URL, since keepers that locked the same rows in
        # different orders would wait for each other in a circle.
        snapshots = self._snapshots = sorted(self._fetch(list(self._clients)), key=lambda snapshot: snapshot.url)
        written = {url: said for url, *said in Node.objects.values_list("url", *_NODE_FIELDS)}
        heard = [
            row
            for snapshot in snapshots
            if snapshot.status is not None and not _is_written(row := _row(snapshot, now), written.get(snapshot.url))
        ]
        # A node that has never answered gets a row too: who looks for it must find that it is silent.
        silent = [Node(url=one.url) for one in snapshots if one.status is None and one.url not in written]
        if heard:
            Node.objects.bulk_create(
                heard, update_conflicts=True, unique_fields=["url"], update_fields=list(_NODE_FIELDS)
            )
        if silent:
            Node.objects.bulk_create(silent, ignore_conflicts=True)


def _row(snapshot: NodeSnapshot, now: datetime) -> Node:
    """The node's row from its status; what it does not say, or says in another type, stays empty."""
    status = snapshot.status or {}
    versions = status.get("versions")
    return Node(
        url=snapshot.url,
        boot_id=_text(status.get("boot_id"), 64),
        model_name=_text(status.get("model"), 255),
        fingerprint=_text(status.get("fingerprint"), 255),
        start_layer=_layer(status.get("start_layer")),
        end_layer=_layer(status.get("end_layer")),
        dtype=_text(status.get("dtype"), 32),
        device=_text(status.get("device"), 32),
        version=_text(versions.get("meshnet"), 32) if isinstance(versions, dict) else "",
        seen_at=now,
    )


def _is_written(row: Node, written: list[Any] | None) -> bool:
    """Whether the database says the same of the node, as `_NODE_FIELDS`, and was told so just now."""
    if written is None:
        return False
    *said, seen_at = written
    if seen_at is None or abs(row.seen_at - seen_at) >= _SEEN_AGAIN:
        return False
    return said == [getattr(row, name) for name in _NODE_FIELDS[:-1]]


def _text(value: Any, longest: int) -> str:
    return value[:longest] if isinstance(value, str) else ""


def _layer(value: Any) -> int | None:
    return value if isinstance(value, int) and 0 <= value < 1_000_000 else None
