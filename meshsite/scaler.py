"""How many replicas a mesh has: by order of an operator, or, within bounds, by what waits at its heads.

Without autoscaling an order is the number itself. With it, it is the lower bound: what stands above it stays as long
as the load wants it. Orders come from the control socket's thread, `step` from the main thread.
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
            order = self._replicas.order(max(replicas, self._replicas.standing))
            self._former_least, self._autoscaling.least = self._autoscaling.least, replicas
            return order

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
            return
        if order.number != self._judged:
            self._judged = order.number
            if order.progress is Progress.REACHED:
                autoscaling.worked()
            else:
                autoscaling.failed(now)
                if order.number != self._own:
                    autoscaling.least = self._former_least
        standing = self._replicas.standing
        if self._replicas.serving != standing:  # a node is being started again
            autoscaling.reset()
            return
        wanted = autoscaling.decide(now, standing, self._look())
        if wanted != standing:
            self._own = self._replicas.order(wanted).number
            why = "generations have been waiting" if wanted > standing else "one fewer has been enough for long"
            self._say(f"From {standing} to {wanted} replicas: {why}.")

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
