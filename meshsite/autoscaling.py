"""When a mesh should have more replicas, or fewer. Pure: what was seen and the time come in, a number comes out.

1. Up by one once in every look for UP_SECONDS generations waited while the places were full: there were more of them
   than places, or a node's cache was nearly full. One that waits while there is room only begins: its prompt is being
   taken in.
2. Down by one once in every look for DOWN_SECONDS that was not so, and all there were, those that begin included, would
   have filled no more than three quarters of the places of one replica fewer.
3. After each change, and whenever not all replicas serve or nothing was seen, counting begins anew. So a step up needs
   the replica before it to have served for UP_SECONDS, and a step down comes at the earliest DOWN_SECONDS after any
   other step: however the load swings, there is no more than one step down in that time.
4. A step up that failed is tried again after a pause, each time twice as long.
"""

from __future__ import annotations

from dataclasses import dataclass

UP_SECONDS = 10.0
DOWN_SECONDS = 300.0
#: Part of the places that may be taken after a step down; and from which part of its bytes on a cache is nearly full.
FULL = 0.75
FIRST_PAUSE_SECONDS = 60.0
LONGEST_PAUSE_SECONDS = 3600.0


@dataclass(frozen=True)
class Load:
    """What the heads say together. `waiting` includes generations that have a place and only begin.

    `slots` is how many generations one replica holds; 0 when that is not known. `cache` is the part of its bytes that
    the fullest node uses.
    """

    waiting: int
    running: int
    slots: int
    cache: float = 0.0


class Autoscaling:
    """`least` may be changed at any time. One thread."""

    def __init__(
        self, least: int, most: int, *, up_seconds: float = UP_SECONDS, down_seconds: float = DOWN_SECONDS
    ) -> None:
        self.least = least
        self.most = most
        self._up_seconds = up_seconds
        self._down_seconds = down_seconds
        self._queued_since: float | None = None
        self._idle_since: float | None = None
        self._pause = 0.0
        self._not_before = float("-inf")

    def decide(self, now: float, replicas: int, load: Load | None) -> int:
        """How many replicas there should be, of which `replicas` serve now and no other is coming or going.

        `load` is None when nobody could say.
        """
        wanted = self._decide(now, replicas, load)
        if wanted != replicas:
            self.reset()
        return wanted

    def reset(self) -> None:
        """The replicas are changing: what was seen up to here says nothing of what comes."""
        self._queued_since = self._idle_since = None

    def failed(self, now: float) -> None:
        """A step up could not be done."""
        self._pause = min(max(FIRST_PAUSE_SECONDS, 2 * self._pause), LONGEST_PAUSE_SECONDS)
        self._not_before = now + self._pause
        self.reset()

    def worked(self) -> None:
        """A step was done."""
        self._pause = 0.0

    def _decide(self, now: float, replicas: int, load: Load | None) -> int:
        if replicas < self.least:
            return self.least if now >= self._not_before else replicas
        if load is None:
            self.reset()
            return replicas
        there = load.waiting + load.running
        queued = load.waiting > 0 and (there > replicas * load.slots or load.cache > FULL)
        self._queued_since = (self._queued_since if self._queued_since is not None else now) if queued else None
        fits = not queued and there <= FULL * (replicas - 1) * load.slots
        self._idle_since = (self._idle_since if self._idle_since is not None else now) if fits else None
        if self._queued_since is not None and now - self._queued_since >= self._up_seconds:
            return replicas + 1 if replicas < self.most and now >= self._not_before else replicas
        if self._idle_since is not None and now - self._idle_since >= self._down_seconds:
            return max(replicas - 1, self.least)
        return replicas
