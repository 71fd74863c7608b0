"""Cancelling running generations: a flag in the row, which the head worker that runs it sees within a second.

Who cancels (a page, a command) is mostly another process than the one whose thread runs the loop, and nothing reaches
from one head worker into another. So `request_cancel` writes a flag, and each worker's `CancelWatch` reads the flags of
its own rows: one query a round however many answers run, none while nothing runs, and none per token.

A generation whose worker has gone keeps its flag unread, and the keeper of another one marks it interrupted.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from django.db import DatabaseError, InterfaceError, connection
from django.db.models import QuerySet

from generation.models import Generation

if TYPE_CHECKING:
    from generation.answer import Answer

logger = logging.getLogger(__name__)

#: Somewhat less than the second that is promised: a round takes time too.
INTERVAL_SECONDS = 0.8


def request_cancel(rows: QuerySet[Generation]) -> list[Generation]:
    """Asks for the end of those of the rows that run and have not been asked yet; returns these.

    The flag is written by one UPDATE that looks again at what runs. A generation that ends at this very moment may be
    among the returned ones and end as done.
    """
    asked = rows.filter(status=Generation.Status.RUNNING, cancel_requested=False)
    found = list(asked)
    if not found:
        return []
    keys = [row.pk for row in found]
    Generation.objects.filter(pk__in=keys, status=Generation.Status.RUNNING).update(cancel_requested=True)
    reached = set(Generation.objects.filter(pk__in=keys, cancel_requested=True).values_list("pk", flat=True))
    return [row for row in found if row.pk in reached]


class CancelWatch:
    """One per head worker: a thread that ends those of `running()` whose rows carry the flag.

    `running` gives the worker's answers under way and is called from the thread.
    """

    def __init__(
        self, boot_id: str, running: Callable[[], Sequence[Answer]], *, interval: float = INTERVAL_SECONDS
    ) -> None:
        self._boot_id = boot_id
        self._running = running
        self._interval = interval
        self._fails = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="meshnet-cancel", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, *, timeout: float = 5.0) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def look(self) -> None:
        """One round. A database that fails is said once in the log and asked again in the next round."""
        answers = {answer.job.session_id: answer for answer in self._running()}
        if not answers:
            return
        flagged = Generation.objects.filter(
            owner=self._boot_id, status=Generation.Status.RUNNING, cancel_requested=True
        ).values_list("session_id", flat=True)
        try:
            wanted = list(flagged)
        except (DatabaseError, InterfaceError) as error:
            if not self._fails:
                logger.warning("Whether a generation is to be cancelled cannot be read: %s", error)
            self._fails = True
            return
        self._fails = False
        for session_id in wanted:
            if session_id in answers:
                answers[session_id].cancel()

    def _run(self) -> None:
        while not self._stopping.wait(self._interval):
            try:
                self.look()
            except Exception:  # the next round must come: nothing else listens to operators
                logger.exception("A look for generations to cancel failed.")
            with contextlib.suppress(DatabaseError, InterfaceError):
                connection.close()  # a waiting thread holds no connection
