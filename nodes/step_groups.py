"""Which sessions' steps ran together lately: their next steps will come together again. Pure: no clock, no thread.

The answers of one turn go back to their heads, through the other nodes, and arrive here as a burst that HTTP spreads
over some milliseconds. A node that takes the first of them at once splits the group, and groups never heal: eight
sessions on two nodes ran in turns of 2.2 steps, where 3.5 fit (67 and 85 tokens/s).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

#: A group's first step waits for the others for as long as this part of the group's last turn, and never longer than
#: so many seconds. A quarter and 10 ms kept turns of 3.1 steps; the whole and 30 ms were no faster than these.
PATIENCE = 0.5
MOST_SECONDS = 0.02
#: Turns that are remembered.
TURNS = 8


class StepGroups:
    """The engine's thread tells what ran; only the newest turn of a session counts."""

    def __init__(self) -> None:
        self._turns: deque[tuple[frozenset[str], float]] = deque(maxlen=TURNS)

    def ran(self, session_ids: Iterable[str], seconds: float) -> None:
        """Steps of one token of these sessions ran together, for so long."""
        group = frozenset(session_ids)
        if group:
            self._turns.append((group, seconds))

    def patience(self, session_id: str, waiting: Collection[str]) -> float:
        """Seconds that a step of this session should wait for the others of its group, those `waiting` being here.

        0 when all are here, and for a session that ran by itself.
        """
        for group, seconds in reversed(self._turns):
            if session_id in group:
                return 0.0 if group.issubset(waiting) else min(PATIENCE * seconds, MOST_SECONDS)
        return 0.0
