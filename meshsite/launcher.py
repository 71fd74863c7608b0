"""A mesh while it runs: heads under a supervisor, nodes under an engine. The main loop of `manage.py mesh`.

Everything here belongs to the main thread, which is the one that forks.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from meshsite.engine import NodeEngine, NodeState, Say, Stand, Wait
from meshsite.mesh_record import MeshRecord
from meshsite.scaler import Scaler
from meshsite.stop_signals import SecondRequest
from meshsite.supervisor import StartFailed, Supervisor

#: How long the heads have the nodes to themselves at the end. A head ends its answers within 4 s.
HEADS_FIRST_SECONDS = 5.0
TELL_EVERY_SECONDS = 10.0


class Launcher:
    """`heads` and `engine` are this object's to run; `scaler` says which nodes there are, `record` notes them."""

    def __init__(
        self,
        heads: Supervisor,
        engine: NodeEngine,
        scaler: Scaler,
        record: MeshRecord,
        say: Say,
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._heads = heads
        self._engine = engine
        self._scaler = scaler
        self._record = record
        self._say = say
        self._clock = clock

    def start(self, wait: Wait) -> bool:
        """Waits until every head and every node serves, and records the mesh; False when a stop was asked for before.

        Raises StartFailed with the reason that one gave, or EngineRefused.
        """
        began = told = self._clock()
        while True:
            self._heads.step(starting=True)
            self._scaler.step()
            states = self._engine.states()
            for state in states:
                if state.stand is Stand.REFUSED:
                    raise StartFailed(f"{state.name} cannot serve: {state.reason}")
            waiting = [_why(state) for state in states if state.stand is not Stand.READY]
            waiting += [child.spec.name for child in self._heads.children if child.ready_at is None]
            if not waiting:
                self._record.begin(states)
                return True
            if self._clock() - told >= TELL_EVERY_SECONDS:
                told = self._clock()
                self._say(f"Waiting for {', '.join(waiting)} ({told - began:.0f} s) …")
            if wait(0.2):
                return False

    def step(self) -> None:
        """Looks at everything once."""
        self._heads.step()
        self._scaler.step()
        self._record.note(self._engine.states())

    def stop(self, wait: Wait) -> None:
        """Ends heads, then nodes; a second request for a stop in `wait` means: at once."""
        hurry = SecondRequest(wait, clock=self._clock)
        began = self._clock()
        try:
            # Answers that heads still write need the nodes: these are told when the heads have left.
            self._heads.tell_to_stop()
            while not self._heads.have_ended() and self._clock() - began < HEADS_FIRST_SECONDS and not hurry(0.1):
                pass
        finally:
            try:
                self._engine.stop(hurry)
            finally:
                self._heads.stop(hurry if self._clock() - began < HEADS_FIRST_SECONDS else lambda seconds: True)

    def pids(self) -> dict[str, int]:
        """Of the processes on this machine that are known, by name."""
        return {**getattr(self._engine, "pids", dict)(), **self._heads.pids()}


def _why(state: NodeState) -> str:
    return f"{state.name} ({state.reason})" if state.reason else state.name
