"""A simulated mesh: nodes in stretches of equal size, and head workers with the real directory and admission."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from generation.directory import NodeDirectory
from generation.job import LoopSettings
from generation.runtime import HeadRuntime
from meshsite.simulation.client import Embedder, SimulatedClient
from meshsite.simulation.cost import Cost
from meshsite.simulation.node import CONTEXT_BLOCKS, FINGERPRINT, VOCABULARY, SimulatedNode
from meshsite.simulation.virtual_time import VirtualTime
from nodes.client import NodeClient
from nodes.errors import MeshnetError
from nodes.kv_sessions import StoreLimits
from nodes.layers import split_evenly
from nodes.live import FETCH_DEADLINE_SECONDS, NodeSnapshot


@dataclass(frozen=True)
class MeshSize:
    nodes: int = 1000
    slots: int = 2
    head_workers: int = 4
    max_answers: int = 240
    cost: Cost = field(default_factory=Cost)

    @property
    def replicas(self) -> int:
        return self.nodes // self.cost.stretches

    @property
    def mesh_slots(self) -> int:
        """Answers that can run at once."""
        return self.replicas * self.slots


class SimulatedMesh:
    def __init__(self, size: MeshSize, seed: int) -> None:
        self.size = size
        self.time = VirtualTime()
        self.rng = random.Random(seed)  # noqa: S311  # nothing secret
        cost = size.cost
        stretches = split_evenly(cost.n_layers, cost.stretches)
        limits = StoreLimits(max_sessions=size.slots, max_bytes=1 << 60)
        self.nodes = [
            SimulatedNode(url_of(index), stretches[index % cost.stretches], self.time, cost, limits)
            for index in range(size.replicas * cost.stretches)
        ]
        self.looks = 0  # at all nodes, by all workers
        self.heads = [self._head(number) for number in range(size.head_workers)]

    def _head(self, number: int) -> HeadRuntime:
        cost = self.size.cost
        clients = [
            SimulatedClient(node, self.time, cost.trip_seconds(self.rng), cost.block_tokens) for node in self.nodes
        ]
        directory = NodeDirectory(
            cast(list[NodeClient], clients), clock=self.time.now, fetch=self._look, threads=self.time
        )
        directory.learn([_heard(client) for client in clients])
        settings = LoopSettings(
            fingerprint=FINGERPRINT,
            dtype="float32",
            n_layers=cost.n_layers,
            vocab_size=VOCABULARY,
            context_length=CONTEXT_BLOCKS,
            piece_tokens=max(1, LoopSettings.piece_tokens // cost.block_tokens),
        )
        no_prompter: Any = None  # texts are token ids here
        return HeadRuntime(
            FINGERPRINT,
            no_prompter,
            Embedder(),
            settings,
            directory,
            boot_id=f"head-{number}",
            max_answers=self.size.max_answers,
        )

    def _look(self, clients: Sequence[NodeClient]) -> list[NodeSnapshot]:
        """What nodes.live.fetch gives, in virtual time: all side by side, by one deadline."""
        self.looks += 1
        simulated = cast(Sequence[SimulatedClient], clients)
        silent = any(client.node.life == "silent" for client in simulated)
        self.time.wait(FETCH_DEADLINE_SECONDS if silent else 2 * max(client.trip for client in simulated))
        return [_heard(client) for client in simulated]


def url_of(index: int) -> str:
    return f"http://10.{index // 62500}.{index // 250 % 250}.{index % 250 + 1}:8001"


def _heard(client: SimulatedClient) -> NodeSnapshot:
    if client.node.life != "up":
        return NodeSnapshot(client.url, None, None, f"{client.url} did not answer.", "unreachable")
    status = client.node.status()
    return NodeSnapshot(client.url, status, None, None, "draining" if status["state"] == "draining" else "ready")


def quietly(what: Any, *args: Any, **kwargs: Any) -> None:
    """Best effort, as the head does it: what a node refuses it gets rid of by itself."""
    try:
        what(*args, **kwargs)
    except MeshnetError:
        return
