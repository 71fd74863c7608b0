"""Several pieces of a prompt on their way at once: while one node works on a piece, the node before it has the next.

Knows nothing of nodes: stages are functions, each called with one piece at a time, in order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Generic, TypeVar

from generation.threads import Line, Started, SystemThreads, Threads

T = TypeVar("T")

#: Pieces that wait between two stages: enough to keep the slower one at work, few enough not to fill the memory.
MOST_WAITING = 2


class _End:
    """No piece follows."""


class Pipeline(Generic[T]):
    """One flow of pieces through stages. The first stage runs on the caller's thread, each other one on its own."""

    def __init__(
        self, stages: Sequence[Callable[[T], T]], *, name: str = "meshnet-piece", threads: Threads | None = None
    ) -> None:
        self._stages = stages
        self._threads = threads or SystemThreads()
        self._name = name
        self._error: BaseException | None = None
        self._lock = threading.Lock()

    def run(self, pieces: Iterable[T], passed: Callable[[T], None]) -> None:
        """Returns when every piece has gone through every stage; `passed` is called with what came out, in order.

        Raises the first error of a stage, of `passed` or of `pieces`; no piece enters a stage after it, and what was
        under way has come to its end. `passed` runs on the last stage's thread.
        """
        lines = [self._threads.line(MOST_WAITING) for _ in self._stages[1:]]
        started: list[Started] = []
        try:
            for index, (stage, line) in enumerate(zip(self._stages[1:], lines, strict=True)):
                following = lines[index + 1] if index + 1 < len(lines) else None
                serve = partial(self._serve, stage, line, following, passed)
                started.append(self._threads.start(serve, f"{self._name} {index + 1}"))
            for piece in pieces:
                if self._error is not None:
                    break
                result = self._stages[0](piece)
                if lines:
                    lines[0].put(result)
                else:
                    passed(result)
        except BaseException as error:
            self._fail(error)
        finally:
            if lines:
                lines[0].put(_End)
            for thread in started:
                thread.join()
        if self._error is not None:
            raise self._error

    def _serve(
        self,
        stage: Callable[[T], T],
        line: Line,
        following: Line | None,
        passed: Callable[[T], None],
    ) -> None:
        while (piece := line.get()) is not _End:
            if self._error is not None:
                continue
            try:
                result = stage(piece)
                if following is None:
                    passed(result)
                else:
                    following.put(result)
            except BaseException as error:
                self._fail(error)
        if following is not None:
            following.put(_End)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if self._error is None:
                self._error = error
