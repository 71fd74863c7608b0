"""One generation's row: written when it starts and when it ends, never per token."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from django.db import Error as DatabaseError
from django.db import connection
from django.utils import timezone

from generation.models import Generation

if TYPE_CHECKING:
    from generation.job import Job, Progress
    from generation.models import APIKey
    from generation.runtime import HeadRuntime
    from nodes.errors import MeshnetError

logger = logging.getLogger(__name__)


class Record:
    """The row of one generation. A database that fails costs the row, never the answer (case F05)."""

    def __init__(self, row_id: int | None) -> None:
        self._row_id = row_id

    @classmethod
    def begin(cls, runtime: HeadRuntime, job: Job, *, api_key: APIKey | None, streamed: bool) -> Record:
        """Writes the row of a generation that is about to run."""
        try:
            row = Generation.objects.create(
                session_id=job.session_id,
                owner=runtime.boot_id,
                api_key=api_key,
                model_name=runtime.model,
                fingerprint=runtime.settings.fingerprint,
                streamed=streamed,
                prompt_tokens=len(job.prompt_ids),
                started_at=timezone.now(),
            )
        except DatabaseError:
            logger.exception("A generation could not be recorded; it runs all the same.")
            return cls(None)
        if not connection.in_atomic_block:
            # What follows waits for nodes: no connection is held meanwhile (case F06).
            connection.close()
        return cls(row.pk)

    def end(self, progress: Progress, error: MeshnetError | None, *, cancelled: bool) -> None:
        """Writes how it went, from the loop's own thread, whose connection it closes."""
        if self._row_id is None:
            return
        status = Generation.Status.DONE
        if error is not None:
            status = Generation.Status.FAILED
        elif not progress.finish_reason:
            status = Generation.Status.CANCELLED if cancelled else Generation.Status.FAILED
        try:
            # Only a running row: what the keeper of another worker took for interrupted stays so.
            Generation.objects.filter(pk=self._row_id, status=Generation.Status.RUNNING).update(
                status=status,
                finish_reason=progress.finish_reason,
                error="" if error is None else f"{error.code}: {error.detail}"[:500],
                route=[] if progress.route is None else progress.route.as_json(),
                completion_tokens=progress.completion_tokens,
                prefills=progress.prefills,
                cache_misses=progress.cache_misses,
                failovers=progress.failovers,
                cached=progress.cached,
                hops=[
                    {
                        "node": url,
                        "steps": times.steps,
                        "compute_ms": round(times.compute_ms, 1),
                        "queue_ms": round(times.queue_ms, 1),
                        "network_ms": round(times.network_ms, 1),
                    }
                    for url, times in progress.hops.items()
                ],
                timeline=[{"at": at, "event": event, "detail": detail} for at, event, detail in progress.events],
                time_to_first_token=progress.time_to_first_token,
                tokens_per_second=progress.tokens_per_second,
                finished_at=timezone.now(),
            )
        except DatabaseError:
            logger.exception("The end of a generation could not be recorded.")
        finally:
            connection.close()
