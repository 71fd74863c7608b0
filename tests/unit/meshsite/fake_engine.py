"""An engine whose nodes do what a test says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshsite.engine import EngineRefused, NodeSpec, NodeState, Stand, Wait
from nodes.layers import LayerRange
from nodes.machines import Machine


class FakeEngine:
    """Nodes start at the next look, serve when a test says so, and leave when it says so."""

    def __init__(self) -> None:
        self.nodes: dict[str, NodeState] = {}
        self.refuses = ""
        self.stopped = False

    def machines(self) -> list[Machine]:
        return []

    def add(self, specs: Sequence[NodeSpec]) -> None:
        if self.refuses:
            raise EngineRefused(self.refuses)
        for spec in specs:
            assert spec.name not in self.nodes, "names are unique while a mesh lives"
            url = f"http://{spec.name}"
            self.nodes[spec.name] = NodeState(spec.name, spec.replica, spec.stage, spec.layers, Stand.STARTING, url)

    def retire(self, names: Sequence[str]) -> None:
        for name in names:
            self.become(name, Stand.LEAVING)

    def step(self) -> None:
        return

    def states(self) -> list[NodeState]:
        return list(self.nodes.values())

    def stop(self, wait: Wait) -> None:
        self.stopped = True
        self.nodes.clear()

    # -- what a test says

    def become(self, name: str, stand: Stand, reason: str = "") -> None:
        self.nodes[name] = replace(self.nodes[name], stand=stand, reason=reason)

    def all_serve(self) -> None:
        for name, state in self.nodes.items():
            if state.stand is Stand.STARTING:
                self.become(name, Stand.READY)

    def all_leave(self) -> None:
        for name, state in list(self.nodes.items()):
            if state.stand is Stand.LEAVING:
                del self.nodes[name]

    def replicas(self) -> list[int]:
        """The numbers of those that are not leaving."""
        return sorted({state.replica for state in self.nodes.values() if state.stand is not Stand.LEAVING})


class Names:
    """Makes the two nodes of a replica, under names that never come twice."""

    def __init__(self) -> None:
        self._next = 0

    def make(self, replica: int) -> list[NodeSpec]:
        specs = []
        for stage, layers in enumerate((LayerRange(0, 2), LayerRange(2, 4)), 1):
            self._next += 1
            specs.append(NodeSpec(f"node{self._next}", replica, stage, layers, {}))
        return specs
