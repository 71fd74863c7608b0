"""Threads for what one generation waits for beside its loop: reused, so that no step pays for a new one."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from nodes.errors import HandoverFailed


class Errands:
    """Runs functions on threads of its own, as many at once as it is given. Any thread may send.

    The threads are daemons: one that waits for a node that hangs keeps no process from ending.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._threads = 0
        self._is_closed = False

    def send(self, job: Callable[[], object]) -> None:
        """The job runs at once, and must raise nothing. After `close` it does not run.

        Raises HandoverFailed when the system has no thread left for it.
        """
        with self._lock:
            if self._is_closed:
                return
            if self._idle:
                self._idle -= 1
            else:
                thread = threading.Thread(target=self._serve, name=f"{self._name} {self._threads + 1}", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    raise HandoverFailed(f"No thread to hand a step over: {error}", to="") from None
                self._threads += 1
            self._jobs.put(job)

    def close(self) -> None:
        """Each thread ends after what it is doing. Returns at once."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                for _ in range(self._threads):
                    self._jobs.put(None)

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            with self._lock:
                self._idle += 1
