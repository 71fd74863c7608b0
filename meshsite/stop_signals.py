"""Signals that ask for an orderly end, for a loop in the main thread."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from time import monotonic
from types import FrameType
from typing import Any

#: One request to stop may arrive as several signals (`timeout` sends two): only a later one means: at once.
SAME_REQUEST_SECONDS = 1.0


class Stopped(Exception):  # reads as what happened
    """A stop was asked for before the mesh was ready."""


class StopSignals:
    """Between enter and exit SIGINT, SIGTERM and SIGHUP only wake `wait`. Main thread only.

    A pipe and not an Event, whose lock a handler could find held by the very thread that it interrupts. A SIGHUP that
    was ignored from the start (`nohup`) stays ignored.
    """

    def __enter__(self) -> StopSignals:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._former: dict[signal.Signals, Any] = {}
        for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # A script's `command &` ignores SIGINT, but whoever then sends one means it.
            if sig != signal.SIGHUP or signal.getsignal(sig) is not signal.SIG_IGN:
                self._former[sig] = signal.signal(sig, self._wake)
        return self

    def __exit__(self, *exc: object) -> None:
        for sig, former in self._former.items():
            signal.signal(sig, former)
        os.close(self._read)
        os.close(self._write)

    def wait(self, seconds: float) -> bool:
        """True as soon as a stop was asked for, once per request; False after so many seconds."""
        ready, _, _ = select.select([self._read], [], [], seconds)
        return bool(ready) and bool(os.read(self._read, 4096))

    def _wake(self, sig: int, frame: FrameType | None) -> None:
        try:
            os.write(self._write, b"!")
        except BlockingIOError:
            return  # 64 KiB of requests are waiting already


class SecondRequest:
    """Waits during an orderly end: True once a stop was asked for a second time, and from then on without waiting."""

    def __init__(self, wait: Callable[[float], bool], *, clock: Callable[[], float] = monotonic) -> None:
        self._wait = wait
        self._clock = clock
        self._began = clock()
        self._hurry = False

    def __call__(self, seconds: float) -> bool:
        if not self._hurry:
            asked = self._wait(seconds)
            self._hurry = asked and self._clock() - self._began >= SAME_REQUEST_SECONDS
        return self._hurry
