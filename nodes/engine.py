"""The one compute thread of a node: work goes into a queue, results come out as futures.

torch keeps one OpenMP pool per calling thread, and inference mode is per thread (DESIGN fact 7, case D12): everything
that computes runs here, the loading and the proof included. Knows nothing of shards, sessions or HTTP.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from nodes.errors import Draining

T = TypeVar("T")


@dataclass(frozen=True)
class Timed(Generic[T]):
    """A result, with how long the work waited and ran, in milliseconds."""

    value: T
    queue_ms: float
    compute_ms: float


@dataclass
class _Job:
    work: Callable[[], Any]
    future: Future[Timed[Any]]
    queued: float


class Engine:
    """Runs submitted work one after another, first come first served, on its own thread."""

    def __init__(self, threads: int = 0, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._threads = threads
        self._clock = clock
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._stopping = False
        self._lock = threading.Lock()  # between a late submit and the stop: no job may land behind the end
        self._thread = threading.Thread(target=self._run, name="meshnet-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, work: Callable[[], T]) -> Future[Timed[T]]:
        """Queues work. Its exception becomes the future's; any thread may call. Raises Draining after `stop`."""
        future: Future[Timed[T]] = Future()
        with self._lock:
            if self._stopping:
                raise Draining()
            self._jobs.put(_Job(work, future, self._clock()))
        return future

    def stop(self) -> None:
        """Ends the thread after what is queued; returns when it has ended. Later work is refused."""
        with self._lock:
            self._stopping = True
            self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        if self._threads:
            torch.set_num_threads(self._threads)
        with torch.inference_mode():
            while (job := self._jobs.get()) is not None:
                self._run_one(job)
                del job  # while this waits, nothing may keep the last step's tensors alive

    def _run_one(self, job: _Job) -> None:
        begun = self._clock()
        try:
            value = job.work()
        except BaseException as error:
            job.future.set_exception(error)
        else:
            ended = self._clock()
            job.future.set_result(Timed(value, (begun - job.queued) * 1e3, (ended - begun) * 1e3))
