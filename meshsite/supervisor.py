"""Keeps child processes running in the foreground: starts them, waits until they answer, starts them again, ends them.

Knows nothing of Django or of the mesh. Algorithm of `Supervisor`:

1. Each child is started in a process group of its own, so that Ctrl-C in the terminal reaches the supervisor alone
   and the children are ended in order; and so that what a killed child leaves behind (workers that hold its port) can
   be swept away before the restart. The kernel ends children whose supervisor is gone (parent_death.py).
2. `step()` looks at all of them once: reports problems from their logs, notices ends and answers, starts those whose
   waiting time is over. It is called in a loop by the main thread, since children are bound to the thread that forked.
3. A child that ended is started again after 1, 2, 4 … 30 s; the row starts anew once it has served for a minute. One
   that *refused* (exit code 3) is not, and neither is one that failed three times without ever having answered.
4. `dismiss()` sends one child SIGTERM and, when 8 s have passed, SIGKILL; once it has ended it is forgotten.
5. `stop()` sends SIGTERM to all, and after 8 s, or when it is asked to hurry, SIGKILL to their groups.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from time import monotonic
from typing import IO, Any
from urllib.parse import urlsplit

from meshsite.child_log import ChildLog
from meshsite.gunicorn_conf import REFUSED
from meshsite.parent_death import follow_parent

STOP_SECONDS = 8.0
FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 30.0
#: A child that has answered for this long starts its next row of waiting times from the beginning.
SETTLED_SECONDS = 60.0
#: A child that failed this often and never answered will not answer the next time either.
FAILURES_BEFORE_FIRST_ANSWER = 3
PROBE_SECONDS = 1.0
#: How long a look waits for answers to its probes. Those that take longer are seen by a later look.
LOOK_SECONDS = 0.2
#: Children that are asked side by side.
MOST_PROBES = 32

Say = Callable[[str], None]
#: Waits so many seconds, or until a stop is asked for: then True.
Wait = Callable[[float], bool]


class StartFailed(Exception):  # reads as what happened
    """A child cannot serve, and starting it again would not help."""


@dataclass(frozen=True)
class ChildSpec:
    """What a child is. It answers 200 on `url`/readyz when it serves."""

    name: str
    command: Sequence[str]
    env: Mapping[str, str] = field(repr=False)  # secrets among it
    url: str
    folder: Path


@dataclass
class Child:
    """One child over all its starts."""

    spec: ChildSpec
    log: ChildLog
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    ready_at: float | None = None
    was_ready: bool = False
    failures: int = 0
    start_at: float | None = field(default=0.0)  # None: not to be started (again)
    #: Why it is not started again, where that is so.
    refusal: str = ""
    #: When it was told to go, for good.
    dismissed_at: float | None = None
    probe: Future[bool] | None = None


def is_ready(url: str) -> bool:
    """Whether the child behind `url` says that it serves. A child that still loads accepts and stays silent."""
    parts = urlsplit(url)
    connection = HTTPConnection(parts.hostname or "", parts.port, timeout=PROBE_SECONDS)
    try:
        connection.request("GET", "/readyz", headers={"Connection": "close"})
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def launch(spec: ChildSpec, output: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603  # what the launcher made, by no shell
        list(spec.command),
        cwd=spec.folder,
        env=dict(spec.env),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        process_group=0,
        preexec_fn=follow_parent(os.getpid(), signal.SIGTERM),  # calls prctl and nothing else
    )


class Supervisor:
    """Owns the children. All methods belong to the main thread. Use as a context manager: leaving it ends them all."""

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        log_dir: Path,
        say: Say,
        *,
        clock: Callable[[], float] = monotonic,
        probe: Callable[[str], bool] = is_ready,
        launch: Callable[[ChildSpec, IO[bytes]], Any] = launch,
    ) -> None:
        self.children: list[Child] = []
        self._log_dir = log_dir
        self._say = say
        self._clock = clock
        self._probe = probe
        self._launch = launch
        # A child that loads takes a probe's whole time: they are asked side by side.
        self._probes = ThreadPoolExecutor(MOST_PROBES, thread_name_prefix="probe")
        for spec in specs:
            self.add(spec)

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Kills what is left."""
        self._probes.shutdown(cancel_futures=True)
        for child in self.children:
            self._sweep(child)
            child.log.close()

    def add(self, spec: ChildSpec) -> None:
        """One more child, started by the next look."""
        self.children.append(Child(spec, ChildLog(self._log_dir / f"{spec.name}.log")))

    def dismiss(self, name: str) -> None:
        """A child ends for good: told now, killed by a look 8 s later, forgotten by the look that finds it ended."""
        child = next(child for child in self.children if child.spec.name == name)
        if child.dismissed_at is None:
            child.start_at, child.dismissed_at = None, self._clock()
            self._tell_to_stop(child)

    def wait_until_ready(self, wait: Wait) -> bool:
        """Starts all and waits until each has answered; False when a stop was asked for before.

        Raises StartFailed with the reason that the child gave.
        """
        began = told = self._clock()
        while True:
            self.step(starting=True)
            waiting = [child.spec.name for child in self.children if child.ready_at is None]
            if not waiting:
                return True
            if self._clock() - told >= 10:
                told = self._clock()
                self._say(f"Waiting for {', '.join(waiting)} ({told - began:.0f} s) …")
            if wait(0.2):
                return False

    def step(self, *, starting: bool = False) -> None:
        """Looks at every child once. `starting`: a child that cannot serve ends it all with StartFailed."""
        for child in list(self.children):
            self._report(child)
            if child.dismissed_at is not None:
                self._see_off(child)
                continue
            if child.process is not None and child.process.poll() is not None:
                self._ended(child, child.process.returncode, starting)
            if child.process is None and child.start_at is not None and child.start_at <= self._clock():
                self._start(child, starting)
        self._ask([child for child in self.children if child.process is not None and child.ready_at is None])

    def tell_to_stop(self) -> None:
        """SIGTERM for all; none is started again from here on. Returns at once."""
        for child in self._alive():
            self._tell_to_stop(child)
        for child in self.children:
            child.start_at = None

    def have_ended(self) -> bool:
        return not self._alive()

    def pids(self) -> dict[str, int]:
        """Of the processes that were started and not seen to end, by name."""
        return {child.spec.name: child.process.pid for child in self.children if child.process is not None}

    def stop(self, wait: Wait) -> None:
        """Ends all children; `wait` answering True means: at once."""
        began = self._clock()
        self.tell_to_stop()
        while alive := self._alive():
            if wait(0.1) or self._clock() - began >= STOP_SECONDS:
                self._say(f"Killing {', '.join(child.spec.name for child in alive)}.")
                break
        for child in self.children:
            child.start_at = None
            self._sweep(child)

    def _tell_to_stop(self, child: Child) -> None:
        if child.process is not None:
            child.process.send_signal(signal.SIGTERM)

    def _alive(self) -> list[Child]:
        return [child for child in self.children if child.process is not None and child.process.poll() is None]

    def _see_off(self, child: Child) -> None:
        """Looks at a child that was told to go."""
        if child.process is not None and child.process.poll() is None:
            if self._clock() - (child.dismissed_at or 0.0) < STOP_SECONDS:
                return
            self._say(f"Killing {child.spec.name}.")
        self._sweep(child)
        self.children.remove(child)
        child.log.close()

    def _report(self, child: Child) -> None:
        for line in child.log.problems():
            self._say(f"{child.spec.name}: {line}")

    def _start(self, child: Child, starting: bool) -> None:
        child.started_at = self._clock()
        child.ready_at = None
        try:
            child.process = self._launch(child.spec, child.log.output)
        except OSError as error:  # no memory or no process left: the others go on, and this one may later
            self._put_off(child, f"could not be started ({error.strerror})", "", starting)

    def _ask(self, children: Sequence[Child]) -> None:
        for child in children:
            child.probe = child.probe or self._probes.submit(self._probe, child.spec.url)
        wait_for([child.probe for child in children if child.probe is not None], timeout=LOOK_SECONDS)
        for child in children:
            if child.probe is None or not child.probe.done():
                continue
            ready, child.probe = child.probe.result(), None
            # What answers could also be somebody else on the port, after the child has failed to bind it.
            if ready and child.process is not None and child.process.poll() is None:
                child.ready_at = self._clock()
                again = " again" if child.was_ready else ""
                child.was_ready = True
                self._say(f"{child.spec.name} is ready{again} after {child.ready_at - child.started_at:.0f} s.")

    def _ended(self, child: Child, code: int, starting: bool) -> None:
        """Decides whether and when an ended child is started again."""
        self._sweep(child)
        self._report(child)
        if child.ready_at is not None and self._clock() - child.ready_at >= SETTLED_SECONDS:
            child.failures = 0
        child.ready_at = child.probe = None  # what a probe of the ended process says is nothing of the next one
        how = _ending(code)
        self._put_off(child, how, (child.log.refusal or f"it {how}") if code == REFUSED else "", starting)

    def _put_off(self, child: Child, how: str, refusal: str, starting: bool) -> None:
        """It is started again after a while; or not at all, for its `refusal` or because it has never served."""
        name = child.spec.name
        child.failures += 1
        hopeless = child.failures >= FAILURES_BEFORE_FIRST_ANSWER and not child.was_ready
        if refusal or hopeless:
            child.start_at = None
            child.refusal = f"{refusal or f'it {how} {child.failures} times'} (log: {child.log.path})"
            message = f"{name} cannot serve: {child.refusal}"
            if starting:
                raise StartFailed(message)
            self._say(f"{message}. It is not started again.")
            return
        pause = min(FIRST_WAIT_SECONDS * 2 ** (child.failures - 1), LONGEST_WAIT_SECONDS)
        child.start_at = self._clock() + pause
        self._say(f"{name} {how}; it is started again in {pause:.0f} s (log: {child.log.path}).")

    def _sweep(self, child: Child) -> None:
        """Kills what is left of a child's process group and forgets the process."""
        if child.process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.process.pid, signal.SIGKILL)
        child.process.wait()
        child.process = None


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    with contextlib.suppress(ValueError):
        return f"was ended by {signal.Signals(-code).name}"
    return f"was ended by signal {-code}"
