"""How fast nodes are, measured by the steps that this head worker sends anyway. Milliseconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from nodes.wire import Timings

#: Weight of the newest step in a running mean: the last dozen steps decide.
NEWEST = 0.15
#: A measurement is believed for so long, in seconds: a machine that was busy then need not be busy now.
BELIEVED_SECONDS = 300.0


@dataclass
class _Speed:
    """Running means of one node. `layer` is of one token; `prompt` of each token of longer steps."""

    at: float
    hop: float | None = None
    queue: float | None = None
    layer: float | None = None
    prompt: float | None = None


class NodeSpeeds:
    """One per head worker. Any thread may tell and ask: what two threads tell at once may lose one measurement."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._speeds: dict[str, _Speed] = {}

    def add(self, url: str, layers: int, tokens: int, total_ms: float, timings: Timings) -> None:
        """One answered step: `tokens` positions through `layers` layers, `total_ms` as the head saw it."""
        now = self._clock()
        speed = self._speeds.get(url)
        if speed is None or now - speed.at > BELIEVED_SECONDS:
            speed = self._speeds[url] = _Speed(now)
        speed.at = now
        speed.queue = _mean(speed.queue, timings.queue_ms)
        if tokens == 1:
            speed.hop = _mean(speed.hop, max(0.0, total_ms - timings.queue_ms - timings.compute_ms))
            speed.layer = _mean(speed.layer, timings.compute_ms / layers)
        else:
            speed.prompt = _mean(speed.prompt, timings.compute_ms / layers / tokens)

    def forget(self, url: str) -> None:
        """Another process may answer there now."""
        self._speeds.pop(url, None)

    def hop_ms(self, url: str) -> float | None:
        """What a decode step costs besides computing and queueing; None when it is not known."""
        speed = self._believed(url)
        return None if speed is None else speed.hop

    def layer_ms(self, url: str) -> float | None:
        """What a decode step computes per layer; None when it is not known."""
        speed = self._believed(url)
        return None if speed is None else speed.layer

    def known(self) -> dict[str, tuple[float | None, float | None]]:
        """`hop_ms` and `layer_ms` of every node of which something is known; a plan over many nodes asks once."""
        now = self._clock()
        # A copy is made in one go, while other threads add and forget.
        speeds = self._speeds.copy().items()
        return {url: (one.hop, one.layer) for url, one in speeds if now - one.at <= BELIEVED_SECONDS}

    def expected_seconds(self, url: str, layers: int, tokens: int) -> float:
        """How long a step will take, as far as it is known: 0 when nothing is."""
        speed = self._believed(url)
        if speed is None:
            return 0.0
        each = speed.layer if tokens == 1 else speed.prompt
        return ((speed.hop or 0.0) + (speed.queue or 0.0) + (each or 0.0) * layers * tokens) / 1e3

    def _believed(self, url: str) -> _Speed | None:
        speed = self._speeds.get(url)
        return speed if speed is not None and self._clock() - speed.at <= BELIEVED_SECONDS else None


def _mean(old: float | None, new: float) -> float:
    return new if old is None else old + NEWEST * (new - old)
