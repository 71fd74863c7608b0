"""A handed-over step on this node: run the layers, then pass it on, or on the tail put the result into the letters.

Raises MeshnetError subclasses. Used by the threads of requests, which each step holds until the nodes behind this one
have done their part.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Any

from nodes.client import StepAnswer
from nodes.errors import BadRequest, HandoverFailed, MeshnetError
from nodes.handover import HandOver, Letter, PassedHop
from nodes.letters import Letters
from nodes.successors import Successors
from nodes.wire import StepHeaders

if TYPE_CHECKING:
    from nodes.payload import Payload
    from nodes.runtime import NodeRuntime

#: A head that is stuck or gone does not hold a thread for longer. Who still waits asks again.
MOST_WAIT_SECONDS = 10.0
#: How long the tail's acknowledgement, for which nobody waits, stays behind the result: else both are made at once,
#: and then both reach the first of three nodes at once, one of them as the next step. Measured: 0.5 to 2 ms a token.
SETTLE_SECONDS = 0.003


class HandingOver:
    """The hand-over side of one running node, which owns it."""

    def __init__(self, successors: Successors, most: int) -> None:
        """`most`: threads that may be held at once by steps on their way and by heads that wait for results."""
        self.letters = Letters()
        self._successors = successors
        self._held = BoundedSemaphore(most)

    def run(self, runtime: NodeRuntime, headers: StepHeaders, payload: Payload) -> StepAnswer:
        """One step through this node and those behind it; the answer holds this node's acknowledgement alone."""
        handover = HandOver.from_json(payload.handover or {})
        self._check(runtime, headers, handover)
        plain = replace(payload, handover=None)
        with self._thread():
            if not handover.rest:
                return self._end(runtime, headers, plain, handover)
            answer = runtime.forward(headers, replace(plain, token_ids=None, sampling=None))
            assert answer.hidden is not None  # noqa: S101  # the layers do not end the model, as was checked
            hop = handover.rest[0]
            self._successors.pass_on(
                hop,
                replace(headers, start_layer=hop.layers.start, end_layer=hop.layers.end),
                replace(payload, hidden=answer.hidden, handover=handover.after(_passed(answer)).as_json()),
            )
        return replace(answer, hidden=None)

    def result(self, session_id: str, nonce: str, seconds: float) -> dict[str, Any] | None:
        """What a step gave, once; None when it has not come within so long (MOST_WAIT_SECONDS at most)."""
        with self._thread():
            letter: dict[str, Any] | None = self.letters.take(session_id, nonce, min(seconds, MOST_WAIT_SECONDS))
            return letter

    def tidy(self) -> None:
        """Closes unused connections, and throws away what nobody fetched."""
        self.letters.sweep()
        self._successors.tidy()

    def _end(self, runtime: NodeRuntime, headers: StepHeaders, payload: Payload, handover: HandOver) -> StepAnswer:
        assert headers.session is not None  # noqa: S101  # a decode has one
        try:
            answer = runtime.forward(headers, payload)
        except MeshnetError:
            self.letters.forget(headers.session)  # the head is told through the nodes before; nobody needs to wait
            raise
        letter = Letter(answer.token_id, answer.text or "", (*handover.passed, _passed(answer)), answer.logprobs)
        self.letters.put(headers.session, handover.nonce, letter.as_json())
        time.sleep(SETTLE_SECONDS)
        return StepAnswer(past_len=answer.past_len, timings=answer.timings)

    @staticmethod
    def _check(runtime: NodeRuntime, headers: StepHeaders, handover: HandOver) -> None:
        """Whatever can be wrong with the way, before anything runs."""
        if headers.cache != "decode":
            raise BadRequest("Only cached decode steps are handed over.")
        if headers.end_layer is None:
            raise BadRequest("A step that is handed over names its layers.")
        if handover.boot_id != runtime.identity.boot_id:
            raise HandoverFailed("Another node was meant than the one that answers here.")
        end = handover.ends_at(headers.end_layer)
        if end != runtime.n_layers:
            raise BadRequest(f"The way ends with layer {end}, the model with {runtime.n_layers}.")

    @contextmanager
    def _thread(self) -> Iterator[None]:
        if not self._held.acquire(blocking=False):
            raise HandoverFailed("As many steps are on their way here as there are threads for.")
        try:
            yield
        finally:
            self._held.release()


def _passed(answer: StepAnswer) -> PassedHop:
    return PassedHop(answer.past_len or 0, answer.timings)
