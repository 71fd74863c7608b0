"""A command that a stop ends: what `subprocess.run` is for a process that may wait."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic

from meshsite.engine import Wait
from meshsite.parent_death import follow_parent
from meshsite.stop_signals import Stopped

LOOK_SECONDS = 0.2


def run_stoppable(
    command: Sequence[str],
    *,
    wait: Wait,
    cwd: Path,
    env: Mapping[str, str],
    timeout: float,
    clock: Callable[[], float] = monotonic,
) -> subprocess.CompletedProcess[str]:
    """What the command wrote and how it ended. Main thread only: the command ends with the thread that forks it.

    Raises Stopped when `wait` says so, and subprocess.TimeoutExpired after `timeout` seconds; nothing of the command is
    left then. A Ctrl-C at the terminal reaches this process alone.
    """
    until = clock() + timeout
    process = subprocess.Popen(  # noqa: S603  # a command of our own
        command,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
        preexec_fn=follow_parent(os.getpid(), signal.SIGKILL),  # calls prctl and nothing else
    )
    with process:
        try:
            while True:
                try:
                    out, err = process.communicate(timeout=LOOK_SECONDS)  # loses nothing when it is called again
                    return subprocess.CompletedProcess(command, process.returncode, out, err)
                except subprocess.TimeoutExpired:
                    if wait(0):
                        raise Stopped() from None
                    if clock() >= until:
                        raise subprocess.TimeoutExpired(command, timeout) from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
