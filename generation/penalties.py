"""Which nodes, or ways between two nodes, failed lately. A fault is held against them for longer each time, and
forgiven by a good step.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

#: How long the first fault of a node is held against it, in seconds; each further one in a row twice as long.
FIRST_SECONDS = 2.0
LONGEST_SECONDS = 120.0
#: After so long without a further fault the row starts anew.
FORGOTTEN_SECONDS = 600.0
#: More faults in a row weigh no more.
MOST_FAULTS = 10


class Penalties:
    """One per head worker; any thread may ask and tell."""

    def __init__(
        self,
        *,
        first_seconds: float = FIRST_SECONDS,
        longest_seconds: float = LONGEST_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._first_seconds = first_seconds
        self._longest_seconds = longest_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._faults: dict[str, tuple[int, float]] = {}  # in a row, and when the last one was

    def fail(self, url: str) -> None:
        """A fault that was the node's own."""
        with self._lock:
            self._faults[url] = (min(self._count(url) + 1, MOST_FAULTS), self._clock())

    def work(self, url: str) -> None:
        """A good step: whatever was held against the node is over."""
        if url in self._faults:  # mostly not: no lock for every step
            with self._lock:
                self._faults.pop(url, None)

    def faults(self, url: str) -> int:
        """Faults in a row that are still held against the node."""
        count, at = self._faults.get(url, (0, 0.0))
        if not count:
            return 0
        held = min(self._first_seconds * 2 ** (count - 1), self._longest_seconds)
        return count if self._clock() - at < held else 0

    def held(self) -> dict[str, int]:
        """`faults` of every node that has any; mostly there are none."""
        with self._lock:
            urls = list(self._faults)
        return {url: count for url in urls if (count := self.faults(url))}

    def _count(self, url: str) -> int:
        count, at = self._faults.get(url, (0, 0.0))
        return count if self._clock() - at < FORGOTTEN_SECONDS else 0
