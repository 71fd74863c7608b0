"""Results of handed-over steps that wait on the tail for their head, and heads that wait for them.

A letter is the JSON of one result. Knows nothing of its content.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

#: Letters that lie here at once: heads ask before their step is done, so that mostly none does.
MOST_LETTERS = 64
#: How long a letter lies here, in seconds. A head that has not come for it by then has given its step up.
KEPT_SECONDS = 30.0

Key = tuple[str, str]


class Letters:
    """By session and nonce: a step that was given up and sent again under another nonce never gets an old result.

    One per node; any thread may call.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._lying: dict[Key, tuple[float, Any]] = {}  # oldest first
        self._waiting: dict[Key, queue.SimpleQueue[Any]] = {}

    def put(self, session_id: str, nonce: str, letter: Any) -> None:
        """Gives the letter to whoever waits for it, else keeps it for a while; the oldest goes when there are many."""
        key = (session_id, nonce)
        with self._lock:
            waiting = self._waiting.pop(key, None)
            if waiting is not None:
                waiting.put(letter)
                return
            self._expire()
            self._lying.pop(key, None)
            self._lying[key] = (self._clock(), letter)
            if len(self._lying) > MOST_LETTERS:
                del self._lying[next(iter(self._lying))]

    def take(self, session_id: str, nonce: str, seconds: float) -> Any:
        """The letter, once; waits for it so long. None when it has not come, or will not come any more."""
        key = (session_id, nonce)
        with self._lock:
            self._expire()
            lying = self._lying.pop(key, None)
            if lying is not None:
                return lying[1]
            if seconds <= 0:
                return None
            self._wake(key)  # who asks again has left the wait before
            mine: queue.SimpleQueue[Any] = queue.SimpleQueue()
            self._waiting[key] = mine
        try:
            return mine.get(timeout=seconds)
        except queue.Empty:
            with self._lock:
                if self._waiting.get(key) is mine:
                    del self._waiting[key]
            # It may have come between the end of the wait and the lock.
            return None if mine.empty() else mine.get()

    def forget(self, session_id: str) -> None:
        """The session ends, begins anew, or its step has failed: nobody needs to wait, and nothing is kept for it."""
        with self._lock:
            for key in [key for key in self._waiting if key[0] == session_id]:
                self._wake(key)
            for key in [key for key in self._lying if key[0] == session_id]:
                del self._lying[key]

    def sweep(self) -> None:
        """Throws away what lies here for too long; also without any traffic."""
        with self._lock:
            self._expire()

    def count(self) -> tuple[int, int]:
        """Letters that lie here, and heads that wait."""
        with self._lock:
            return len(self._lying), len(self._waiting)

    def _wake(self, key: Key) -> None:
        """Under the lock."""
        waiting = self._waiting.pop(key, None)
        if waiting is not None:
            waiting.put(None)

    def _expire(self) -> None:
        """Under the lock."""
        oldest = self._clock() - KEPT_SECONDS
        while self._lying:
            key = next(iter(self._lying))
            if self._lying[key][0] > oldest:
                return
            del self._lying[key]
