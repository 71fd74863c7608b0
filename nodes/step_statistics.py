"""What a node has done since its start: steps, tokens, times, and its last errors. Monotonic but for the errors."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from nodes.errors import MeshnetError
from nodes.wire import Timings

#: How many errors a node remembers for people to look at.
REMEMBERED_ERRORS = 20
MODES = ("prefill", "decode", "stateless")


class StepStatistics:
    """Safe to use from any thread. `wall` only labels errors for people."""

    def __init__(self, *, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._lock = threading.Lock()
        self._steps: Counter[str] = Counter()
        self._tokens = 0
        self._compute_ms = 0.0
        self._queue_ms = 0.0
        self._refusals: Counter[str] = Counter()
        self._errors: deque[dict[str, Any]] = deque(maxlen=REMEMBERED_ERRORS)
        self._layer_ms: float | None = None
        self._turns = self._turn_steps = 0

    def count(self, mode: str, tokens: int, timings: Timings, layers: int = 0) -> None:
        """A step that was answered; `tokens` positions were computed through `layers` layers (0: not said)."""
        with self._lock:
            if mode == "decode" and tokens == 1 and layers:
                newest = timings.compute_ms / layers
                self._layer_ms = newest if self._layer_ms is None else 0.9 * self._layer_ms + 0.1 * newest
            self._steps[mode] += 1
            self._tokens += tokens
            self._compute_ms += timings.compute_ms
            self._queue_ms += timings.queue_ms

    def count_turn(self, steps: int) -> None:
        """The engine ran so many steps together."""
        with self._lock:
            self._turns += 1
            self._turn_steps += steps

    @property
    def layer_ms(self) -> float | None:
        """A running mean of what one layer computes for one token, in milliseconds; None before the first decode."""
        with self._lock:
            return self._layer_ms

    def fail(self, error: MeshnetError) -> None:
        """A step that was refused or failed. Only faults are remembered: a miss or a full node is everyday life."""
        with self._lock:
            self._refusals[error.code] += 1
            if error.http_status >= 500 and error.code not in ("busy", "draining"):
                self._errors.append({"at": self._wall(), "code": error.code, "detail": error.detail[:200]})

    def as_json(self) -> dict[str, Any]:
        """Totals since the start, milliseconds; `errors` newest first."""
        with self._lock:
            return {
                "steps": {mode: self._steps[mode] for mode in MODES},
                "tokens": self._tokens,
                "compute_ms": round(self._compute_ms, 3),
                "queue_ms": round(self._queue_ms, 3),
                "turns": self._turns,
                "turn_steps": self._turn_steps,
                "refusals": dict(self._refusals),
                "errors": list(reversed(self._errors)),
            }
