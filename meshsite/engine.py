"""What keeps the nodes of a mesh running: one interface, behind which processes of this machine stand
(meshsite/local_engine.py) or actors of a Ray cluster (meshsite/ray_engine.py).

A mesh consists of replicas, each of which holds every layer once: one node for each stage, which is a stretch of
layers. Nodes are found by their heads through their announcements, wherever an engine starts them and starts them
again. All methods belong to the thread that made the engine, and none waits for a node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from nodes.layers import LayerRange
from nodes.machines import Machine

#: Waits so many seconds, or until a stop is asked for: then True.
Wait = Callable[[float], bool]
Say = Callable[[str], None]


class EngineRefused(Exception):  # reads as what happened
    """The engine cannot do that; the message is one line that says what to do about it."""


@dataclass(frozen=True)
class NodeSpec:
    """One node: one stage of one replica, both counted from 1. Names are unique while a mesh lives.

    `settings` are the node's environment variables (MESHNET_…), the mesh secret and its heads among them; the engine
    adds what only it knows: MESHNET_BIND, MESHNET_URL, MESHNET_VAR_DIR. `memory_bytes` is what its weights, its
    caches and Python take.
    """

    name: str
    replica: int
    stage: int
    layers: LayerRange
    settings: Mapping[str, str] = field(repr=False)
    memory_bytes: int = 0
    cpus: float = 1.0
    gpus: float = 0.0


class Stand(StrEnum):
    """How a node stands."""

    PLACING = "placing"  # no machine for it yet
    STARTING = "starting"
    READY = "ready"
    WAITING = "waiting"  # it ended, and is started again after a while
    LEAVING = "leaving"  # retired: it drains, and then ends
    REFUSED = "refused"  # it cannot serve, and starting it again would not help


@dataclass(frozen=True)
class NodeState:
    """What an engine knows of one node. `url` is empty while it has no place; `reason` is why it does not serve."""

    name: str
    replica: int
    stage: int
    layers: LayerRange
    stand: Stand
    url: str = ""
    machine: str = ""
    reason: str = ""


class NodeEngine(Protocol):
    """Starts nodes, starts them again when they end, and ends them."""

    def machines(self) -> list[Machine]:
        """Where nodes may be placed. May take seconds: it measures them."""

    def add(self, specs: Sequence[NodeSpec]) -> None:
        """Starts the nodes of one replica. Raises EngineRefused when that can never be."""

    def retire(self, names: Sequence[str]) -> None:
        """These take no new session from here on, and end once the sessions that they hold have."""

    def step(self) -> None:
        """Looks at every node once: notices ends and answers, starts again what is to be started again."""

    def states(self) -> list[NodeState]:
        """Of all nodes that were added and have not left, by the last `step`, in the order of adding."""

    def stop(self, wait: Wait) -> None:
        """Ends all nodes; `wait` answering True means: at once. Nothing is left when it returns."""
