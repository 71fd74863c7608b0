"""How many replicas a mesh has: by order of an operator, or, within bounds, by what waits at its heads.

1. Without autoscaling an order is the number itself. With it, it is the lower bound: what serves above it stays as long
   as the load wants it.
2. A step up by autoscaling that does not serve after STUCK_SECONDS (there is no place for it) is taken back, and tried
   again later like one that failed.
3. With autoscaling a replica that refused for good makes way once another one serves; then it is decided anew.

Orders come from the control socket's thread, `step` from the main thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

from meshsite.autoscaling import Autoscaling, Load
from meshsite.control_socket import ControlRefused, Request
from meshsite.engine import NodeState, Say
from meshsite.replicas import Order, OrderRefused, Progress, Replicas

#: How long a step up may go on. Loading a model over a slow network is minutes; a place that is not there is for ever.
STUCK_SECONDS = 600.0


class Scaler:
    """`look` gives the load of now, None when it is not known; it is asked when there is `autoscaling` only."""

    def __init__(
        self,
        replicas: Replicas,
        say: Say,
        *,
        autoscaling: Autoscaling | None = None,
        look: Callable[[], Load | None] = lambda: None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._replicas = replicas
        self._say = say
        self._autoscaling = autoscaling
        self._look = look
        self._clock = clock
        self._lock = threading.Lock()
        self._own = 0  # the number of the last order that autoscaling gave
        self._own_since = 0.0
        self._former_least = 0
        self._judged = 0

    def order(self, replicas: int) -> Order:
        """An operator wants so many. Raises OrderRefused. Any thread."""
        with self._lock:
            if self._autoscaling is None:
                return self._replicas.order(replicas)
            if not 1 <= replicas <= self._autoscaling.most:
                raise OrderRefused(
                    f"This mesh can have 1 to {self._autoscaling.most} replicas (--max-replicas), not {replicas}."
                )
            order = self._replicas.order(max(replicas, self._kept()))
            self._former_least, self._autoscaling.least = self._autoscaling.least, replicas
            return order

    def _kept(self) -> int:
        """How many replicas an order for fewer leaves to the load. What is on its way may never come."""
        if self._replicas.last_order.progress is Progress.UNDER_WAY:
            return self._replicas.serving
        return self._replicas.standing - len(self._replicas.refused)

    def step(self) -> None:
        """Looks at every node once, and does what is due. Main thread."""
        self._replicas.step()
        if self._autoscaling is not None:
            with self._lock:
                self._autoscale(self._autoscaling)

    def _autoscale(self, autoscaling: Autoscaling) -> None:
        order, now = self._replicas.last_order, self._clock()
        if order.progress is Progress.UNDER_WAY:
            autoscaling.reset()
            self._take_back(autoscaling, order, now)
            return
        if order.number != self._judged:
            self._judged = order.number
            if order.progress is Progress.REACHED:
                autoscaling.worked()
            else:
                autoscaling.failed(now)
                if order.number != self._own:
                    autoscaling.least = self._former_least
        standing, refused = self._replicas.standing, self._replicas.refused
        if refused and self._replicas.serving:
            self._judged = self._order_own(standing - len(refused))  # says nothing of steps up
            name, _, reason = refused[0].partition(": ")
            self._say(f"From {standing} to {standing - len(refused)} replicas: {name} does not serve ({reason}).")
            return
        if self._replicas.serving != standing:  # a node is being started again
            autoscaling.reset()
            return
        wanted = autoscaling.decide(now, standing, self._look())
        if wanted != standing:
            self._order_own(wanted)
            why = "one fewer has been enough for long"
            if wanted > standing:
                why = f"{wanted} are the least" if wanted <= autoscaling.least else "generations have been waiting"
            self._say(f"From {standing} to {wanted} replicas: {why}.")

    def _take_back(self, autoscaling: Autoscaling, order: Order, now: float) -> None:
        """Ends a step up of its own that has had its time; not below what serves, nor below the least."""
        enough = max(autoscaling.least, self._replicas.serving)
        if order.number != self._own or order.replicas <= enough or now - self._own_since < STUCK_SECONDS:
            return
        self._judged = self._order_own(enough)  # that this is reached does not mean that a step up works
        autoscaling.failed(now)
        self._say(
            f"The mesh stays with {enough} of {order.replicas} replicas for now: after {STUCK_SECONDS / 60:.0f} min "
            "not all of them serve. It is tried again later."
        )

    def _order_own(self, replicas: int) -> int:
        """The number of the order."""
        self._own, self._own_since = self._replicas.order(replicas).number, self._clock()
        return self._own

    # -- the control socket

    def answer(self, request: Request) -> dict[str, Any]:
        """`{"do": "status"}` or `{"do": "scale", "replicas": 2}`; both are answered by how things stand.

        Raises ControlRefused. Any thread.
        """
        unknown = set(request) - {"do", "replicas"}
        if unknown:
            raise ControlRefused(f"What is {', '.join(sorted(map(repr, unknown)))}?")
        match request.get("do"):
            case "status":
                order = self._replicas.last_order
            case "scale":
                number = request.get("replicas")
                if not isinstance(number, int) or isinstance(number, bool):
                    raise ControlRefused("How many replicas? That is a whole number.")
                try:
                    order = self.order(number)
                except OrderRefused as error:
                    raise ControlRefused(str(error)) from None
            case _:
                raise ControlRefused('A mesh is told {"do": "scale", "replicas": 2} or asked {"do": "status"}.')
        return self._report(order)

    def _report(self, order: Order) -> dict[str, Any]:
        bounds = self._autoscaling
        return {
            "replicas": self._replicas.standing,
            "serving": self._replicas.serving,
            "most": self._replicas.most if bounds is None else bounds.most,
            "autoscaling": None if bounds is None else {"least": bounds.least, "most": bounds.most},
            "order": {
                "number": order.number,
                "replicas": order.replicas,
                "progress": str(order.progress),
                "reason": order.reason,
            },
            "nodes": [_node(state) for state in self._replicas.states],
        }


def _node(state: NodeState) -> dict[str, Any]:
    return {
        "name": state.name,
        "replica": state.replica,
        "layers": str(state.layers),
        "state": str(state.stand),
        "url": state.url,
        "machine": state.machine,
        "reason": state.reason,
    }
