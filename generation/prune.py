"""Removes old rows of generations. Rows are kept for ever unless somebody asks for this."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Q, QuerySet

from generation.models import Generation

#: Rows of one DELETE. SQLite's write lock is held for one batch at a time, so that answers that begin and end
#: meanwhile write their rows in between.
BATCH_ROWS = 500


@dataclass(frozen=True)
class Pruned:
    """What was deleted, or with a dry run would be; `running` are older ones that were left alone."""

    rows: int
    running: int


def prune(before: datetime, *, dry_run: bool = False, batch_rows: int = BATCH_ROWS) -> Pruned:
    """Deletes rows of generations that ended before the given time; never one that runs.

    Whatever is deleted is gone: a database that fails half-way leaves the rest for the next time. Raises Django's
    database errors.
    """
    running = Generation.objects.filter(status=Generation.Status.RUNNING, started_at__lt=before).count()
    if dry_run:
        return Pruned(_ended(before).count(), running)
    return Pruned(sum(_deleted(before, batch_rows)), running)


def _deleted(before: datetime, batch_rows: int) -> Iterator[int]:
    while ids := list(_ended(before).order_by("pk").values_list("pk", flat=True)[:batch_rows]):
        # Asked again what it is: the condition is what counts, not the list.
        deleted, _ = _ended(before).filter(pk__in=ids).delete()
        yield deleted
        if not deleted:
            return  # somebody else was faster; without this two of them could chase each other


def _ended(before: datetime) -> QuerySet[Generation]:
    # What ended before began before: that column has an index. A row without an end (written by hand) goes by its
    # beginning.
    return (
        Generation.objects.filter(started_at__lt=before)
        .exclude(status=Generation.Status.RUNNING)
        .filter(Q(finished_at__lt=before) | Q(finished_at__isnull=True))
    )
