"""How many replicas of the model there are to be, and the steps that lead there, whatever engine runs the nodes.

1. `order` says the wanted number; any thread may. A later order supersedes an earlier one.
2. `step` adds replicas under the smallest free numbers, all at once, until as many stand as are wanted; or retires
   those that are too many: first those with a node that refused, then those that do not serve, then the newest.
   Retired ones end by themselves.
3. An order is reached once as many replicas serve as are wanted and none is leaving. It has failed when a node
   that was added for it refuses: all that were added for it are retired, and what stood before stands.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from meshsite.engine import EngineRefused, NodeEngine, NodeSpec, NodeState, Say, Stand


class Progress(StrEnum):
    UNDER_WAY = "under_way"
    REACHED = "reached"
    FAILED = "failed"


class OrderRefused(Exception):  # reads as what happened
    """That number of replicas cannot be; the message says why."""


@dataclass(frozen=True)
class Order:
    """What was asked for last, and how it is going."""

    number: int
    replicas: int
    progress: Progress
    reason: str = ""


@dataclass
class _Group:
    """The nodes of one replica, by what the engine said last."""

    number: int
    states: list[NodeState] = field(default_factory=list)

    @property
    def is_leaving(self) -> bool:
        return any(state.stand is Stand.LEAVING for state in self.states)

    @property
    def is_ready(self) -> bool:
        return all(state.stand is Stand.READY for state in self.states)

    @property
    def refusal(self) -> str:
        return next((f"{one.name}: {one.reason}" for one in self.states if one.stand is Stand.REFUSED), "")


class Replicas:
    """`make` gives the nodes of a replica by its number. All but `order` belong to the main thread.

    The order with the number 0 is that of the start. Whoever starts the mesh looks for refusals itself.
    """

    def __init__(
        self, engine: NodeEngine, make: Callable[[int], Sequence[NodeSpec]], say: Say, *, wanted: int, most: int
    ) -> None:
        self._engine = engine
        self._make = make
        self._say = say
        self._lock = threading.Lock()
        self._most = most
        self._order = Order(0, wanted, Progress.UNDER_WAY)
        self._added: set[int] = set()  # for the order that is under way
        self._states: list[NodeState] = []

    @property
    def last_order(self) -> Order:
        with self._lock:
            return self._order

    @property
    def most(self) -> int:
        return self._most

    @property
    def states(self) -> list[NodeState]:
        """Of all nodes, by the last step. Any thread."""
        with self._lock:
            return self._states

    @property
    def standing(self) -> int:
        """How many replicas there are that are not leaving, by the last step. Any thread."""
        return sum(not group.is_leaving for group in _groups(self.states))

    @property
    def serving(self) -> int:
        """How many of them serve whole."""
        return sum(group.is_ready for group in _groups(self.states))

    @property
    def refused(self) -> list[str]:
        """Why, of each replica that has a node that refused."""
        return [group.refusal for group in _groups(self.states) if group.refusal and not group.is_leaving]

    def order(self, replicas: int) -> Order:
        """Raises OrderRefused for a number out of bounds. Returns at once."""
        if not 1 <= replicas <= self._most:
            raise OrderRefused(f"This mesh can have 1 to {self._most} replicas, not {replicas}.")
        with self._lock:
            self._order = Order(self._order.number + 1, replicas, Progress.UNDER_WAY)
            return self._order

    def step(self) -> None:
        """Does what is due, and looks at every node once."""
        order = self.last_order
        groups = [group for group in _groups(self._engine.states()) if not group.is_leaving]
        if order.progress is not Progress.FAILED:
            self._move(order, groups)
        self._engine.step()
        if order.progress is Progress.UNDER_WAY:
            self._judge(order)
        with self._lock:
            self._states = self._engine.states()

    def _move(self, order: Order, groups: list[_Group]) -> None:
        surplus = len(groups) - order.replicas
        if surplus > 0:
            going = sorted(groups, key=lambda group: (bool(group.refusal), not group.is_ready))[-surplus:]
            for group in reversed(going):
                self._retire(group)
        numbers = {group.number for group in _groups(self._engine.states())}
        for _ in range(-surplus):
            number = next(candidate for candidate in range(1, len(numbers) + 2) if candidate not in numbers)
            numbers.add(number)
            self._added.add(number)
            try:
                self._engine.add(self._make(number))
            except EngineRefused as error:
                if order.number == 0:  # the start itself
                    raise
                self._fail(order, str(error))
                return

    def _judge(self, order: Order) -> None:
        groups = _groups(self._engine.states())
        standing = [group for group in groups if not group.is_leaving]
        refused = [group for group in standing if group.refusal]
        news = [group for group in refused if group.number in self._added]
        if news and order.number:
            self._fail(order, news[0].refusal)
        elif len(standing) == len(groups) == order.replicas and all(
            one.is_ready for one in groups if one not in refused
        ):
            self._added.clear()
            reason = refused[0].refusal if refused else ""
            self._settle(order, Progress.FAILED if refused else Progress.REACHED, reason)

    def _fail(self, order: Order, reason: str) -> None:
        self._say(f"{order.replicas} replicas cannot be had: {reason}")
        for group in _groups(self._engine.states()):
            if group.number in self._added and not group.is_leaving:
                self._retire(group)
        self._added.clear()
        self._settle(order, Progress.FAILED, reason)

    def _settle(self, order: Order, progress: Progress, reason: str = "") -> None:
        with self._lock:
            if self._order.number == order.number:
                self._order = Order(order.number, order.replicas, progress, reason)

    def _retire(self, group: _Group) -> None:
        self._engine.retire([state.name for state in group.states])


def _groups(states: Sequence[NodeState]) -> list[_Group]:
    """Replicas in the order of their coming."""
    groups: dict[int, _Group] = {}
    for state in states:
        groups.setdefault(state.replica, _Group(state.replica)).states.append(state)
    return list(groups.values())
