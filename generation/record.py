"""One generation's row: written when it starts and when it ends, never per token."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast

from django.apps import apps
from django.db import Error as DatabaseError
from django.db import connection
from django.utils import timezone

from generation.key_usage import add_usage, day_of
from generation.models import Generation

if TYPE_CHECKING:
    from generation.job import Job, Progress
    from generation.limits import KeyLimits
    from generation.models import APIKey
    from generation.runtime import HeadRuntime
    from nodes.errors import MeshnetError

logger = logging.getLogger(__name__)


class Record:
    """The row of one generation. A database that fails costs the row, never the answer (case F05)."""

    def __init__(self, row_id: int | None, usage: Usage | None = None) -> None:
        self._row_id = row_id
        self._usage = usage

    @classmethod
    def begin(
        cls,
        runtime: HeadRuntime,
        job: Job,
        *,
        api_key: APIKey | None,
        streamed: bool,
        choice: int = 0,
        counts_prompt: bool = True,
    ) -> Record:
        """Writes the row of a generation that is about to run.

        `choice`: which answer of its request it is. `counts_prompt`: whether its key has not used the same prompt for
        another answer of this request.
        """
        prompt_tokens = len(job.prompt_ids) if counts_prompt else 0
        usage = None if api_key is None else Usage(api_key, prompt_tokens=prompt_tokens, choice=choice)
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
            return cls(None, usage)
        if not connection.in_atomic_block:
            # What follows waits for nodes: no connection is held meanwhile (case F06).
            connection.close()
        return cls(row.pk, usage)

    def end(self, progress: Progress, error: MeshnetError | None, *, cancelled: bool) -> None:
        """Writes how it went and what its key used, from the loop's own thread, whose connection it closes."""
        try:
            self._end_row(progress, error, cancelled=cancelled)
            if self._usage is not None:
                self._usage.write(progress)
        finally:
            connection.close()

    def _end_row(self, progress: Progress, error: MeshnetError | None, *, cancelled: bool) -> None:
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


class Usage:
    """What one generation adds to its key's day: in all, what the usage in the answer says. Of several answers to one
    request, the first counts the request.
    """

    def __init__(self, key: APIKey, *, prompt_tokens: int, choice: int) -> None:
        self._key = key
        self._requests = 1 if choice == 0 else 0
        self._prompt_tokens = prompt_tokens

    def write(self, progress: Progress) -> None:
        """Adds it to the day on which the generation ends. A prompt that no node was sent counts nothing."""
        day = day_of(timezone.now())
        try:
            add_usage(
                self._key.pk,
                day,
                requests=self._requests,
                prompt_tokens=self._prompt_tokens if progress.prefills else 0,
                completion_tokens=progress.completion_tokens,
            )
        except DatabaseError:
            logger.exception("What an API key used could not be recorded.")
            return
        if self._key.tokens_per_day is not None:
            limits: KeyLimits = cast(Any, apps.get_app_config("generation")).limits
            limits.used(self._key, day)
