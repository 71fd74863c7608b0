"""Signals that ask for an orderly end, for a loop in the main thread."""

from __future__ import annotations

import os
import select
import signal
from types import FrameType
from typing import Any


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
