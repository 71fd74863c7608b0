"""Replicas and their places on a Ray cluster: groups of bundles that are asked for, found, and asked for anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from meshsite.engine import NodeSpec, NodeState, Stand
from meshsite.ray_cluster import RayCluster, RayMachine
from meshsite.ray_places import Place, Room, assign, emptiest, fit_in, interchangeable, why_not_placed

#: An actor or group that Ray gave up is made anew after so long.
AGAIN_SECONDS = 10.0
#: Ray places bundles within a second where there is room for them.
EXACT_AFTER_SECONDS = 5.0


@dataclass
class PlacedNode:
    """A node, its bundle and its actor, as far as it has them, and the question that the actor has not answered yet."""

    spec: NodeSpec
    state: NodeState
    bundle: int | None = None
    machine: str = ""  # Ray's id of the machine from which the actor last answered, or where its bundle is
    actor: Any = None
    call: Any = None
    is_leaving: bool = False
    start_at: float = 0.0

    @property
    def room(self) -> Room:
        return Room.of(self.spec)

    def stands(self, stand: Stand, *, reason: str = "", url: str = "", machine: str = "") -> None:
        self.state = replace(self.state, stand=stand, url=url, machine=machine, reason=reason)


@dataclass
class PlacedReplica:
    number: int
    nodes: list[PlacedNode]
    group: Any = None
    reserve_at: float = 0.0
    #: What each bundle holds.
    rooms: list[Room] = field(default_factory=list)
    #: When the bundles are to be no larger than needed, if Ray has not found a place for them by then.
    exact_at: float | None = None


class Placing:
    """Owns the replicas, and knows which machines live."""

    def __init__(self, cluster: RayCluster, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._clock = clock
        self.replicas: list[PlacedReplica] = []
        self.alive: dict[str, RayMachine] = {}
        self.look()

    @property
    def nodes(self) -> list[PlacedNode]:
        return [node for replica in self.replicas for node in replica.nodes]

    def look(self) -> None:
        """Asks Ray which machines live."""
        self.alive = {machine.id: machine for machine in self._cluster.machines()}

    def name(self, machine: str) -> str:
        found = self.alive.get(machine)
        return found.name if found is not None else ""

    def add(self, replica: PlacedReplica) -> None:
        self.replicas.append(replica)
        self._reserve(replica)

    def place(self, replica: PlacedReplica) -> list[PlacedNode]:
        """Those of its nodes that have a place and are to be started; says of the others why they have none."""
        places = self._cluster.places(replica.group)
        if places is None:
            self._reserve_anew(replica)
            return []
        if not places and all(node.actor is None for node in replica.nodes):
            if replica.exact_at is not None and self._clock() >= replica.exact_at:
                self._cluster.release(replica.group)
                self._reserve(replica, exact=True)
        elif self._is_to_be_exact(replica, places):
            # Its other nodes start anew, too: sessions on them go on elsewhere, or wait as for the lost stage.
            self._cluster.release(replica.group)
            self._begin_anew(replica, "a bundle found no place that was larger than needed; smaller ones are asked for")
            self._reserve(replica, exact=True)
            return []
        waiting = [node for node in replica.nodes if node.actor is None and not node.is_leaving]
        if waiting and all(node.bundle is None for node in replica.nodes) and len(places) == len(replica.rooms):
            self._assign(replica, places)
        homeless = [node for node in replica.nodes if node.bundle is None or node.bundle not in places]
        if homeless:
            reason = why_not_placed([node.room for node in homeless], [one.room for one in self.alive.values()])
            for node in homeless:
                if not node.is_leaving and not node.state.url:
                    node.stands(Stand.PLACING, reason=reason)
        return [node for node in waiting if node.bundle is not None and self._clock() >= node.start_at]

    def drop_left(self) -> None:
        """Forgets retired nodes whose actors have ended, and groups of which nothing is left."""
        for replica in list(self.replicas):
            replica.nodes = [node for node in replica.nodes if node.actor is not None or not node.is_leaving]
            if not replica.nodes:
                self._cluster.release(replica.group)
                self.replicas.remove(replica)

    def end(self, node: PlacedNode) -> None:
        """Its actor is killed, if it has one."""
        if node.actor is not None:
            self._cluster.end(node.actor)
        node.actor = node.call = None
        node.machine = ""

    def _assign(self, replica: PlacedReplica, places: dict[int, str]) -> None:
        found = [Place(bundle, machine, replica.rooms[bundle]) for bundle, machine in sorted(places.items())]
        held = {node.spec.stage: self._held(node.spec.stage) for node in replica.nodes}
        chosen = assign({node.spec.stage: node.room for node in replica.nodes}, found, held)
        for node in replica.nodes:
            node.bundle, node.machine = chosen[node.spec.stage].bundle, chosen[node.spec.stage].machine

    def _held(self, stage: int) -> list[str]:
        """The machines of the nodes that have a place and hold this stage."""
        return [node.machine for node in self.nodes if node.spec.stage == stage and node.machine]

    def _reserve(self, replica: PlacedReplica, *, exact: bool = False) -> None:
        wanted = [node.room for node in replica.nodes]
        machines = [machine.room for machine in self.alive.values()]
        replica.rooms = wanted if exact else interchangeable(wanted, machines)
        replica.exact_at = None if replica.rooms == wanted else self._clock() + EXACT_AFTER_SECONDS
        near = None
        if len(replica.nodes) == 1:
            (node,) = replica.nodes
            near = emptiest(self._cluster.free(), node.room, self._held(node.spec.stage))
        replica.group = self._cluster.reserve(f"meshnet replica {replica.number}", replica.rooms, near)

    def _reserve_anew(self, replica: PlacedReplica) -> None:
        """Somebody removed the group, and its actors with it."""
        if self._clock() < replica.reserve_at:
            return
        replica.reserve_at = self._clock() + AGAIN_SECONDS
        self._begin_anew(replica, "Ray has removed its group of resources; another one is asked for")
        self._reserve(replica)

    def _begin_anew(self, replica: PlacedReplica, reason: str) -> None:
        for node in replica.nodes:
            self.end(node)
            node.bundle = None
            node.stands(Stand.PLACING, reason=reason)

    def _is_to_be_exact(self, replica: PlacedReplica, places: dict[int, str]) -> bool:
        """Whether bundles made alike have been without a place for long, since a machine's loss, and smaller ones would
        find one.
        """
        wanted = [node.room for node in replica.nodes]
        lives = {bundle: machine for bundle, machine in places.items() if machine in self.alive}
        if len(lives) == len(replica.rooms) or replica.rooms == wanted or any(n.is_leaving for n in replica.nodes):
            replica.exact_at = None
            return False
        if replica.exact_at is None:
            replica.exact_at = self._clock() + EXACT_AFTER_SECONDS
        if self._clock() < replica.exact_at:
            return False
        replica.exact_at = self._clock() + EXACT_AFTER_SECONDS  # asked once more then, if it would not help now
        free = self._cluster.free()
        for bundle, machine in lives.items():
            if machine in free:
                free[machine] = free[machine].and_also(replica.rooms[bundle])
        return fit_in(wanted, list(free.values()))
