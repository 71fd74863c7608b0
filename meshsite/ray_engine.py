"""Nodes on the machines of a Ray cluster: an actor keeps each (meshsite/ray_node.py), Ray finds it a machine.

1. `add` reserves a group for a replica: a bundle of processors, GPUs and memory for each stage, spread over machines.
   The bundles are alike where there is room for that, so that any stage may go into any.
2. Once Ray has found the bundles, `step` gives each stage one of them, copies of a stage apart
   (meshsite/ray_placing.py), and starts an actor in it.
3. `step` asks each actor how its node stands, one question at a time, and waits for none.
4. A machine dies: Ray finds its bundles another machine and starts their actors there. Until an actor answers from its
   new place its node has no URL, so that the launcher forgets the former one.
5. A retired node drains; its actor ends with it, and the group goes when all of its nodes have.

Nothing here imports Ray, which meshsite/ray_cluster.py alone speaks to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any

from meshsite.engine import EngineRefused, NodeSpec, NodeState, Say, Stand, Wait
from meshsite.ray_actor import Order
from meshsite.ray_cluster import ActorAway, ActorLost, RayCluster
from meshsite.ray_placing import AGAIN_SECONDS, PlacedNode, PlacedReplica, Placing
from nodes.machines import Machine

#: How long the sessions of a retired node may go on there, as under the local engine.
LEAVE_SECONDS = 120.0
#: Longer than a node needs to end in order (meshsite/supervisor.py).
STOP_SECONDS = 10.0
KILL_SECONDS = 2.0
LEFT = "left"


class RayEngine:
    """A NodeEngine (meshsite/engine.py). `folder` and `var_dir` are paths on every machine."""

    def __init__(
        self,
        cluster: RayCluster,
        folder: Path,
        var_dir: Path,
        say: Say,
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._cluster = cluster
        self._folder = folder
        self._var_dir = var_dir
        self._say = say
        self._clock = clock
        self._placing = Placing(cluster, clock)
        # A cluster of one machine whose nodes no other machine could use: they stay on loopback.
        here = {machine.address for machine in self._placing.alive.values()} == {cluster.address_here}
        self._only_at = cluster.address_here if here and not cluster.address_here.startswith("127.") else ""

    @property
    def addresses(self) -> list[str]:
        """Where nodes will be: the machines' addresses, or loopback alone."""
        if self._only_at:
            return ["127.0.0.1"]
        return sorted({machine.address for machine in self._placing.alive.values()})

    def machines(self) -> list[Machine]:
        """Raises EngineRefused when no machine can hold a node."""
        self._placing.look()
        found, problems = [], []
        for machine_id, said in self._cluster.survey(str(self._folder)).items():
            machine = self._placing.alive.get(machine_id)
            if machine is None:
                continue
            if said["problem"]:
                problems.append(f"{machine.name}: {said['problem']}")
                continue
            gpus = machine.room.gpus if said["gpu_bytes"] else 0.0
            memory = said["gpu_bytes"] or machine.room.memory_bytes
            cpus = min(machine.room.cpus, float(said["cores"]))
            found.append(Machine(machine.name, memory, said["bytes_per_second"], cpus, gpus))
        if not found:
            raise EngineRefused(f"No machine of the Ray cluster can hold a node: {'; '.join(problems)}")
        for problem in problems:
            self._say(f"No node can be on {problem}.")
        return found

    def add(self, specs: Sequence[NodeSpec]) -> None:
        for spec in specs:
            if any(spec.settings.get(name) for name in ("MESHNET_TLS_CERT", "MESHNET_TLS_KEY")):
                raise EngineRefused("Nodes on Ray speak plain HTTP: unset MESHNET_TLS_CERT and MESHNET_TLS_KEY.")
        nodes = [
            PlacedNode(spec, NodeState(spec.name, spec.replica, spec.stage, spec.layers, Stand.PLACING))
            for spec in specs
        ]
        self._placing.add(PlacedReplica(specs[0].replica, nodes))

    def retire(self, names: Sequence[str]) -> None:
        for node in self._placing.nodes:
            if node.spec.name in names:
                node.is_leaving = True
                if node.actor is not None:
                    self._tell_to_leave(node)

    def step(self) -> None:
        self._placing.look()
        for replica in self._placing.replicas:
            for node in self._placing.place(replica):
                self._start(node, replica)
        asked = [node.call for node in self._placing.nodes if node.call is not None]
        answered = self._cluster.answers(asked)
        for node in self._placing.nodes:
            self._hear(node, answered)
        self._placing.drop_left()

    def states(self) -> list[NodeState]:
        return [node.state for node in self._placing.nodes]

    def stop(self, wait: Wait) -> None:
        began = self._clock()
        nodes = self._placing.nodes
        for node in nodes:
            node.is_leaving = True
            node.call = None
            if node.actor is not None:
                self._cluster.call(node.actor, "stop")
        # Whose machine is gone has nothing left to end.
        waiting = [node for node in nodes if node.actor is not None and node.machine]
        while waiting:
            for node in waiting:
                node.call = node.call or self._cluster.call(node.actor, "look")
            answered = self._cluster.answers([node.call for node in waiting])
            waiting = [node for node in waiting if not self._has_left(node, answered)]
            if waiting and (wait(0.1) or self._clock() - began >= STOP_SECONDS):
                break
        self._kill(waiting)
        for node in nodes:
            if node.actor is not None:
                self._cluster.end(node.actor)
        for replica in self._placing.replicas:
            self._cluster.release(replica.group)
        self._placing.replicas.clear()
        self._cluster.close()

    def _start(self, node: PlacedNode, replica: PlacedReplica) -> None:
        spec = node.spec
        order = Order(
            name=spec.name,
            settings={"MESHNET_ROLE": "node", "MESHNET_LAYERS": str(spec.layers), **spec.settings},
            folder=str(self._folder),
            var_dir=str(self._var_dir),
            threads=max(1, int(spec.cpus)),
            only_at=self._only_at,
        )
        assert node.bundle is not None  # noqa: S101  # for the type checker
        node.actor = self._cluster.start(order, replica.group, node.bundle, replica.rooms[node.bundle])
        node.stands(Stand.STARTING, machine=self._placing.name(node.machine))

    def _hear(self, node: PlacedNode, answered: Sequence[Any]) -> None:
        if node.actor is None:
            return
        is_gone = bool(node.machine) and node.machine not in self._placing.alive
        if is_gone and node.is_leaving:
            self._placing.end(node)  # it has left by that, and is not to come back anywhere
            return
        if is_gone and node.state.stand is not Stand.PLACING:
            self._say(f"{node.spec.name}: the machine {node.state.machine} is gone; Ray places the node anew.")
            node.machine = ""
            node.stands(Stand.PLACING, reason="its machine is gone; Ray places it anew")
        if node.call in answered:
            call, node.call = node.call, None
            try:
                self._take(node, self._cluster.answer(call))
            except ActorAway:
                self._away(node)
            except ActorLost as error:
                self._lost(node, str(error))
        if node.actor is not None and node.call is None:
            node.call = self._cluster.call(node.actor, "look")

    def _take(self, node: PlacedNode, seen: dict[str, Any]) -> None:
        for line in seen["lines"]:
            self._say(line)
        if seen["machine"] not in self._placing.alive:
            return  # its last words
        if node.is_leaving:
            if seen["stand"] in (LEFT, Stand.REFUSED):
                self._cluster.end(node.actor)
                node.actor = None
            elif seen["stand"] != Stand.LEAVING:  # Ray has started it again since it was told
                self._tell_to_leave(node)
            return
        stand = Stand(seen["stand"])
        if stand is Stand.REFUSED and node.state.stand is not Stand.REFUSED:
            self._say(f"{node.spec.name} cannot serve: {seen['reason']}. It is not started again.")
        node.machine = seen["machine"]
        node.stands(stand, url=seen["url"], machine=self._placing.name(node.machine), reason=seen["reason"])

    def _away(self, node: PlacedNode) -> None:
        """The actor cannot be reached. If it ended, Ray starts it again; one that was leaving has left by that.

        Its URL stays until it is known to be gone: the node itself may serve on.
        """
        if node.is_leaving:
            self._cluster.end(node.actor)
            node.actor = None
        elif node.state.stand in (Stand.STARTING, Stand.READY):
            self._say(f"{node.spec.name}: its actor does not answer; Ray starts it again if it is gone.")
            node.state = replace(node.state, stand=Stand.WAITING, reason="its actor does not answer")

    def _lost(self, node: PlacedNode, reason: str) -> None:
        self._placing.end(node)
        node.stands(Stand.WAITING, reason=f"Ray has given its actor up ({reason}); another one is started")
        node.start_at = self._clock() + AGAIN_SECONDS
        if not node.is_leaving:
            self._say(f"{node.spec.name}: {node.state.reason}.")

    def _tell_to_leave(self, node: PlacedNode) -> None:
        self._cluster.call(node.actor, "retire", LEAVE_SECONDS)
        node.state = replace(node.state, stand=Stand.LEAVING)

    def _has_left(self, node: PlacedNode, answered: Sequence[Any]) -> bool:
        if node.call not in answered:
            return False
        call, node.call = node.call, None
        try:
            return self._cluster.answer(call)["stand"] in (LEFT, Stand.REFUSED)
        except (ActorAway, ActorLost):
            return True

    def _kill(self, nodes: Sequence[PlacedNode]) -> None:
        """At once, but not before their processes are swept away."""
        if not nodes:
            return
        self._say(f"Killing {', '.join(node.spec.name for node in nodes)}.")
        self._cluster.answers([self._cluster.call(node.actor, "kill") for node in nodes], KILL_SECONDS)
