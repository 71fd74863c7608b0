"""Who waits for a free session slot, first come, first served. One line per head worker."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable


class WaitingLine:
    """Only the one in front asks the nodes for a slot; the others wait behind it instead of overtaking.

    Safe to use from any thread. A place is any object of the caller's own. `changed` is called, without the line's
    lock, after someone came or went.
    """

    def __init__(self, *, changed: Callable[[], None] = lambda: None) -> None:
        self._changed = changed
        self._places: deque[object] = deque()
        self._lock = threading.Lock()

    def enter(self, place: object) -> None:
        """Takes the last place; does nothing for one who stands in line already."""
        with self._lock:
            if place in self._places:
                return
            self._places.append(place)
        self._changed()

    def enter_behind(self, place: object) -> None:
        """Takes the last place if others stand in line; who finds none may go ahead. Does not call `changed`."""
        with self._lock:
            if self._places and place not in self._places:
                self._places.append(place)

    def leave(self, place: object) -> None:
        """Gives the place up; does nothing for one who does not stand in line."""
        with self._lock:
            if place not in self._places:
                return
            self._places.remove(place)
        self._changed()

    def holds(self, place: object) -> bool:
        with self._lock:
            return place in self._places

    def is_first(self, place: object) -> bool:
        """Whether it is this one's turn; also true when nobody stands in line."""
        with self._lock:
            return not self._places or self._places[0] is place

    def __len__(self) -> int:
        with self._lock:
            return len(self._places)
