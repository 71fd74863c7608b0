"""Virtual time: thousands of loops on one thread, each of which believes that it waits.

Every loop is a greenlet, which hands over to the next due one where it would wait: for a clock, an event, a line or a
node. Who is due first goes first; of those due at once the one that came first. So a run depends on nothing but what
it was given: no thread, no real clock.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import Any

from greenlet import getcurrent, greenlet

from generation.threads import Event, Line, Started


class VirtualTime:
    """A clock, and `generation.threads.Threads` that run by it. Seconds. Only the thread that made it may use it."""

    def __init__(self) -> None:
        self._now = 0.0
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._number = 0
        self._hub = getcurrent()

    def now(self) -> float:
        return self._now

    def call_at(self, at: float, what: Callable[[], object]) -> None:
        """`what` must not wait: it runs between the loops."""
        self._number += 1
        heapq.heappush(self._due, (max(at, self._now), self._number, what))

    def call_soon(self, what: Callable[[], object]) -> None:
        self.call_at(self._now, what)

    def wait(self, seconds: float) -> None:
        """As `time.sleep`, for whoever was started here."""
        self.call_at(self._now + seconds, getcurrent().switch)
        self._hub.switch()

    def pause(self) -> Any:
        """Until somebody resumes the caller; what he says."""
        return self._hub.switch()

    def run(self, until: float = float("inf")) -> None:
        """Until nothing is due any more, or nothing before `until`. Raises what a loop raises."""
        self._hub = getcurrent()
        while self._due and self._due[0][0] <= until:
            self._now, _, what = heapq.heappop(self._due)
            what()
        if until != float("inf"):
            self._now = max(self._now, until)

    # -- as generation.threads.Threads

    def start(self, target: Callable[[], object], name: str = "") -> Started:
        task = Task(self, target)
        self.call_soon(task.switch)
        return task

    def event(self) -> Event:
        return VirtualEvent(self)

    def line(self, most: int) -> Line:
        return VirtualLine(self, most)


class Task:
    """One loop."""

    def __init__(self, time: VirtualTime, target: Callable[[], object]) -> None:
        self._ended = VirtualEvent(time)
        self._target = target
        self.switch = greenlet(self._run, time._hub).switch

    def _run(self) -> None:
        try:
            self._target()
        finally:
            self._ended.set()

    def join(self) -> None:
        self._ended.wait()


class VirtualEvent:
    def __init__(self, time: VirtualTime) -> None:
        self._time = time
        self._is_set = False
        self._waiting: list[Callable[[], object]] = []

    def set(self) -> None:
        self._is_set = True
        for resume in self._waiting:
            self._time.call_soon(resume)
        self._waiting.clear()

    def wait(self) -> None:
        if not self._is_set:
            self._waiting.append(getcurrent().switch)
            self._time.pause()


class VirtualLine:
    """As `queue.Queue`; those who wait are served in the order of their coming."""

    def __init__(self, time: VirtualTime, most: int) -> None:
        self._time = time
        self._most = most
        self._items: deque[Any] = deque()
        self._getting: deque[Callable[[], object]] = deque()
        self._putting: deque[Callable[[], object]] = deque()

    def put(self, item: Any) -> None:
        while len(self._items) >= self._most:
            self._putting.append(getcurrent().switch)
            self._time.pause()
        self._items.append(item)
        if self._getting:
            self._time.call_soon(self._getting.popleft())

    def get(self) -> Any:
        while not self._items:
            self._getting.append(getcurrent().switch)
            self._time.pause()
        item = self._items.popleft()
        if self._putting:
            self._time.call_soon(self._putting.popleft())
        return item
