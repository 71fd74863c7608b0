"""A node that drains: it takes no new session, and may end once it holds none. Asks it in the background.

A session that nobody releases (its head was killed) is not waited for longer than the others: all have `seconds`, and
what is left then is moved by the node's own draining, or expires.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from nodes.client import NodeClient

ASK_SECONDS = 2.0
PAUSE_SECONDS = 0.5
#: A node that has not confirmed that it drains after so long is told to end instead, which drains it too.
CONFIRM_SECONDS = 10.0


class LeavingNode:
    """Made when the node is to leave. `step` belongs to one thread, and never waits."""

    def __init__(
        self,
        connect: Callable[[], NodeClient],
        seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._connect = connect
        self._seconds = seconds
        self._clock = clock
        self._pause = pause
        self._began = clock()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._is_draining = False
        self._is_empty = False

    def step(self) -> bool:
        """Whether the node may end now."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._drain, name="meshnet-drain", daemon=True)
            self._thread.start()
        waited = self._clock() - self._began
        if self._is_empty or waited >= self._seconds or (not self._is_draining and waited >= CONFIRM_SECONDS):
            self.end()
            return True
        return False

    def end(self) -> None:
        """It is not asked any more."""
        self._stopping = True

    def _drain(self) -> None:
        """The background thread: drains, then looks until no session is left."""
        while not self._stopping and not self._is_empty:
            self._look()
            self._pause(PAUSE_SECONDS)

    def _look(self) -> None:
        try:
            client = self._connect()
            if not self._is_draining:
                client.set_draining(True, timeout=ASK_SECONDS)
                self._is_draining = True
            self._is_empty = client.sessions(timeout=ASK_SECONDS)["stats"]["sessions"] == 0
        except Exception:  # unreachable, or an odd answer: it is asked again, until its time is over
            return
