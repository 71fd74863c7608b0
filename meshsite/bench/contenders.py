"""Who is measured, besides the mesh: processes of this project's own that stay loaded and answer one run at a time.

Between its runs a process is stopped (SIGSTOP): a pool that waits actively goes on turning for minutes, on the cores
that the next contender is measured on.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from meshsite.bench import machine
from meshsite.parent_death import follow_parent

STOP_SECONDS = 10.0


class ContenderFailed(Exception):  # reads as what happened
    """A contender cannot be measured; the message says why."""


class Contender(Protocol):
    """Somebody who generates. `generate` runs a prompt and greedily `new_tokens` more, whatever they are: seconds of
    the monotonic clock when it began and when each new token was there.
    """

    name: str
    setup: str

    def generate(self, prompt: list[int], new_tokens: int) -> list[float]: ...
    def memory(self) -> dict[str, int | None]:
        """Resident bytes of each of its processes."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class Setup:
    """Threads of each process (0: untouched) and variables for its compute pools."""

    label: str
    threads: int = 0
    environ: Mapping[str, str] = field(default_factory=dict)


def setups(cores: int, threads: int, *, tunes: bool) -> list[Setup]:
    """What each process of a contender is tried with. The untouched default is always among them.

    Waiting passively gives the core away between two layers, which slows a process that has them for itself; waiting
    actively helps it. Both are tried, so that nobody is measured below what they can.
    """
    count = threads or cores
    found = [Setup("untouched"), Setup("1 thread", 1)]
    if threads > 1:
        found[1] = Setup(f"{threads} threads", threads)
    if tunes and count > 1:
        found += [
            Setup(f"{count} threads, active waiting", count, {"OMP_WAIT_POLICY": "active"}),
            Setup(f"{count} threads, passive waiting", count, {"OMP_WAIT_POLICY": "passive"}),
        ]
    return found


class Workers:
    """A contender of one or more `meshsite.bench.worker` processes that run each order together."""

    def __init__(
        self, name: str, kind: str, model: Path, dtype: str, setup: Setup, *, processes: int, base_dir: Path, log: Path
    ) -> None:
        """Returns at once; `wait` returns when it is loaded. Start from the main thread, which children follow."""
        self.name = name
        self.setup = setup.label
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        common = {**machine.environment(os.environ), **setup.environ}
        if processes > 1:  # as torchrun starts them
            common |= {
                "WORLD_SIZE": str(processes),
                "LOCAL_WORLD_SIZE": str(processes),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(_free_port()),
            }
        command = [sys.executable, "-m", "meshsite.bench.worker", kind, str(model), dtype, str(setup.threads)]
        self._processes = []
        with log.open("wb") as output:
            for rank in range(processes):
                own = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if processes > 1 else {}
                self._processes.append(
                    subprocess.Popen(  # noqa: S603  # this project's own module
                        command,
                        cwd=base_dir,
                        env={**common, **own},
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=output,
                        text=True,
                        process_group=0,  # Ctrl-C reaches the command, which ends them
                        preexec_fn=follow_parent(os.getpid(), signal.SIGKILL),
                    )
                )

    def wait(self) -> None:
        """Raises ContenderFailed when it could not load."""
        threads = self._answers()[0]["threads"]
        self.setup = f"{self.setup} ({threads} threads)" if self.setup == "untouched" else self.setup
        self._signal(signal.SIGSTOP)

    def generate(self, prompt: list[int], new_tokens: int) -> list[float]:
        order = json.dumps({"prompt": prompt, "new_tokens": new_tokens}) + "\n"
        self._signal(signal.SIGCONT)
        try:
            for process in self._processes:
                if process.stdin is not None:  # it was opened above
                    process.stdin.write(order)
                    process.stdin.flush()
        except OSError:
            raise self._failure() from None
        # Every rank's generate() returns the text: it is there when the first process has it.
        times: list[float] = self._answers()[0]["times"]
        self._signal(signal.SIGSTOP)
        return times

    def memory(self) -> dict[str, int | None]:
        return {
            f"process {index}": machine.resident_bytes(process.pid)
            for index, process in enumerate(self._processes, start=1)
        }

    def close(self) -> None:
        for process in self._processes:
            process.kill()  # it holds nothing that must be put away
        for process in self._processes:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):  # an order that it never took
                        pipe.close()

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes:
            process.send_signal(number)

    def _answers(self) -> list[dict[str, Any]]:
        found = []
        for process in self._processes:
            line = process.stdout.readline() if process.stdout else ""
            if not line:
                raise self._failure()
            found.append(json.loads(line))
        return found

    def _failure(self) -> ContenderFailed:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return ContenderFailed(f"{self.name} ended: {lines[-1] if lines else 'without a word'} (log: {self._log})")


def medians(tries: Sequence[Contender], score: Callable[[Contender], float], rounds: int) -> list[float]:
    """Each one's median score over the rounds, measured in turn."""
    found: list[list[float]] = [[] for _ in tries]
    for number in range(rounds):
        for place in range(len(tries)):
            index = (place + number) % len(tries)
            found[index].append(score(tries[index]))
    return [statistics.median(scores) for scores in found]


def first_token_ms(times: Sequence[float]) -> float:
    return (times[1] - times[0]) * 1e3


def tokens_per_second(times: Sequence[float]) -> float:
    """Of the decode phase: first token to last."""
    return (len(times) - 2) / (times[-1] - times[1])


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
