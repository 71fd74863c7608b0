"""A head's client of a simulated node: the interface of nodes/client.py, its trips and silences in virtual time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from greenlet import getcurrent

from meshsite.simulation.node import SimulatedNode, token_of
from meshsite.simulation.virtual_time import VirtualTime
from nodes.client import StepAnswer
from nodes.connections import PROBE_SECONDS
from nodes.errors import MeshnetError, NodeTimeout, NodeUnreachable
from nodes.layers import LayerRange
from nodes.payload import Payload
from nodes.wire import StepHeaders, Timings

#: A step without patience of its own is left to its timeout.
LONGEST_PATIENCE = 3600.0


@dataclass(frozen=True)
class FakeStates:
    """Hidden states of which only the length is known, in blocks."""

    shape: tuple[int, int, int]


class Embedder:
    """Embeds nothing."""

    def embed(self, token_ids: list[int]) -> Any:
        return FakeStates((1, len(token_ids), 1))


class SimulatedClient:
    """One head's way to one node. `trip` is one way, of one message; a decode step makes `decode_trips` of them."""

    def __init__(self, node: SimulatedNode, time: VirtualTime, trip: float, decode_trips: int) -> None:
        self.url = node.url
        self.node = node
        self.trip = trip
        self._time = time
        self._decode_trips = decode_trips

    def forward(
        self, headers: StepHeaders, payload: Payload, *, timeout: float, patience: float | None = None
    ) -> StepAnswer:
        blocks, past_len = payload.hidden.shape[1], headers.past_len
        is_decode = past_len is not None and blocks == 1
        trip = self.trip * (self._decode_trips if is_decode else 1)
        layers = LayerRange(headers.start_layer or 0, headers.end_layer or 0)
        begun = self._time.now()
        self._time.wait(trip)
        if self.node.life == "down":
            self._time.wait(trip)
            raise NodeUnreachable(f"{self.url} cannot be reached: connection refused")
        if self.node.life == "silent":
            self._leave_silent(begun, patience, timeout)
        back = getcurrent().switch

        def told(held: int | MeshnetError | None, queue_ms: float, compute_ms: float) -> None:
            self._time.call_at(self._time.now() + trip, lambda: back((held, queue_ms, compute_ms)))

        try:
            self.node.ask(str(headers.session), str(headers.cache), layers, past_len, blocks, told)
        except MeshnetError as error:
            self._time.wait(trip)
            raise error from None
        held, queue_ms, compute_ms = self._time.pause()
        if held is None:
            self._leave_silent(begun, patience, timeout)
        if isinstance(held, MeshnetError):
            raise held
        timings = Timings(queue_ms, compute_ms)
        if layers.end < self.node.n_layers:
            return StepAnswer(hidden=payload.hidden, past_len=held, timings=timings)
        wants = payload.sampling is None or payload.sampling.get("want_token", True)
        token = token_of(str(headers.session), held) if wants else None
        return StepAnswer(token_id=token, has_token_id=True, past_len=held, timings=timings)

    def status(self, *, timeout: float) -> dict[str, Any]:
        self._reach(timeout)
        return self.node.status()

    def sessions(self, *, timeout: float) -> dict[str, Any]:
        self._reach(timeout)
        return self.node.store.snapshot()

    def release(self, session_id: str, *, timeout: float) -> None:
        self._reach(timeout)
        self.node.store.release(session_id)

    def give_back(self, session_id: str, *, timeout: float) -> None:
        self._reach(timeout)
        self.node.store.evict([session_id], by="released")

    def evict(
        self,
        *,
        ids: Sequence[str] | None = None,
        idle_longer_than: float | None = None,
        everything: bool = False,
        timeout: float,
    ) -> dict[str, Any]:
        raise NotImplementedError("no operator is simulated")

    def set_limits(self, changes: dict[str, Any], *, timeout: float) -> dict[str, Any]:
        raise NotImplementedError("no operator is simulated")

    def set_draining(self, draining: bool, *, timeout: float) -> None:
        self._reach(timeout)
        self.node.is_draining = draining

    def tidy(self) -> None:
        """There are no connections."""

    def _reach(self, timeout: float) -> None:
        """Asks and hears back: two trips. Raises what a node that is gone or silent makes of it."""
        if self.node.life == "silent":
            self._time.wait(timeout)
            raise NodeTimeout(f"{self.url} did not answer within {timeout:g} s.")
        self._time.wait(2 * self.trip)
        if self.node.life == "down":
            raise NodeUnreachable(f"{self.url} cannot be reached: connection refused")

    def _leave_silent(self, begun: float, patience: float | None, timeout: float) -> NoReturn:
        """Waits until a node that is silent by now is left: asked after each `patience`, and silent then too."""
        each = patience or LONGEST_PATIENCE
        asked_at = begun + each * max(1, math.ceil((self._time.now() - begun) / each))
        left_at = min(asked_at + PROBE_SECONDS, begun + timeout)
        self._time.wait(max(0.0, left_at - self._time.now()))
        raise NodeTimeout(f"{self.url} hangs: it answers neither a step nor whether it lives.")
