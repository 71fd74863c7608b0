"""Threads, and what they wait for, as the head's loop and directory use them: passed in, as its clock is.

`SystemThreads` are the operating system's. A simulation in virtual time gives its own (`meshsite/simulation/`).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol


class Event(Protocol):
    """As `threading.Event`."""

    def set(self) -> None: ...
    def wait(self) -> object: ...


class Line(Protocol):
    """As `queue.Queue`: `put` waits while it is full, `get` while it is empty."""

    def put(self, item: Any) -> None: ...
    def get(self) -> Any: ...


class Started(Protocol):
    """A thread that runs."""

    def join(self) -> None: ...


class Threads(Protocol):
    def start(self, target: Callable[[], object], name: str) -> Started:
        """Runs `target`, which must raise nothing, beside the caller. Raises RuntimeError when there is no thread."""

    def event(self) -> Event: ...
    def line(self, most: int) -> Line: ...


class SystemThreads:
    """Daemons: one that waits for a node that hangs keeps no process from ending."""

    def start(self, target: Callable[[], object], name: str) -> Started:
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        return thread

    def event(self) -> Event:
        return threading.Event()

    def line(self, most: int) -> Line:
        return queue.Queue(most)
