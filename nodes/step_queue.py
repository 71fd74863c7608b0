"""The steps that wait for the engine, and their turns: many sessions' steps run as one (nodes/batching.py says which).

While one turn runs on the engine's thread, the steps that arrive wait here; the next turn takes all that fit. So a
node that is alone with one session runs each step at once, and one with many runs them together. Of sessions that ran
together the first waits for the others a moment, so that they stay together (nodes/step_groups.py).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from nodes.batching import Budget, pick
from nodes.engine import Engine
from nodes.errors import ComputeFailed, Draining
from nodes.step import Step, StepResult
from nodes.step_groups import StepGroups
from nodes.step_runner import StepRunner

logger = logging.getLogger(__name__)

#: For so long after a step of one token a further one is expected, in seconds.
ANSWER_SECONDS = 1.0


class StepQueue:
    """One per node. `submit` may be called from any thread; turns run on the engine's.

    counted is called after each turn, on the engine's thread, with how many steps were in it.
    """

    def __init__(
        self,
        engine: Engine,
        runner: StepRunner,
        *,
        budget: Budget | None = None,
        counted: Callable[[int], None] = lambda steps: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._engine = engine
        self._runner = runner
        self._budget = Budget() if budget is None else budget
        self._counted = counted
        self._clock = clock
        self._lock = threading.Condition()  # told of each step that comes
        self._waiting: list[Step] = []
        self._has_turn = False
        self._answered_at = float("-inf")
        self._groups = StepGroups()

    def submit(self, step: Step) -> Future[StepResult]:
        """Queues a step whose entry is in use. Raises Draining once the engine has stopped."""
        step.queued_at = self._clock()
        with self._lock:
            self._waiting.append(step)
            self._lock.notify()
            try:
                self._ask_for_turn()
            except Draining:
                self._waiting.remove(step)
                raise
        return step.future

    def _ask_for_turn(self) -> None:
        """Under the lock."""
        if not self._has_turn:
            self._engine.submit(self._turn)
            self._has_turn = True

    def _gather(self) -> None:
        """Under the lock: lets the rest of the oldest step's group come."""
        oldest = self._waiting[0]
        if not oldest.is_decode:
            return
        begun = self._clock()
        while True:
            patience = self._groups.patience(oldest.session_id, {step.session_id for step in self._waiting})
            left = begun + patience - self._clock()
            if left <= 0 or not self._lock.wait(left):
                return

    def _turn(self) -> None:
        with self._lock:
            self._gather()
            answers_run = self._clock() - self._answered_at < ANSWER_SECONDS
            turns = [
                (self._waiting[place], tokens)
                for place, tokens in pick(self._waiting, self._budget, answers_run=answers_run)
            ]
        if any(step.is_decode for step, _ in turns):
            self._answered_at = self._clock()
        unfinished: list[Step] = []
        begun = self._clock()
        try:
            unfinished = self._runner.run(turns)
        except BaseException as error:  # a bug, and whoever waits must hear of it
            logger.exception("A turn of %d steps failed.", len(turns))
            for step, _ in turns:
                if not step.future.done():
                    step.future.set_exception(ComputeFailed(f"The step failed: {type(error).__name__}."))
        self._counted(len(turns))
        self._groups.ran((step.session_id for step, _ in turns if step.is_decode), self._clock() - begun)
        with self._lock:
            over = {id(step) for step, _ in turns} - {id(step) for step in unfinished}
            self._waiting = [step for step in self._waiting if id(step) not in over]
            self._has_turn = False
            if self._waiting:
                try:
                    self._ask_for_turn()
                except Draining as error:
                    for step in self._waiting:
                        step.future.set_exception(error)
                    self._waiting.clear()
