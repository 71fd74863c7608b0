"""A mesh inside the test's process: real shards, stores and engines, reached without HTTP."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from generation.directory import NodeDirectory
from generation.head import TokenLoop
from generation.job import Job, LoopSettings
from nodes.boot import start_node
from nodes.client import LocalNodeClient, NodeClient
from nodes.kv_sessions import StoreLimits
from nodes.layers import LayerRange
from nodes.runtime import NodeRuntime
from nodes.shard import Embedder
from nodes.wire import mint_session_id
from tests.toys import EOS

FINGERPRINT = "toy@1"


def ranges(*cuts: int) -> list[LayerRange]:
    """ranges(0, 2, 4) is the split 0:2 | 2:4."""
    return [LayerRange(a, b) for a, b in itertools.pairwise(cuts)]


@contextmanager
def running_nodes(folder: Path, splits: list[LayerRange], **options: Any) -> Iterator[list[NodeRuntime]]:
    """Nodes of the given layers; stopped at the end. Options are `start_node`'s."""
    options.setdefault("limits", StoreLimits())
    nodes: list[NodeRuntime] = []
    try:
        for layers in splits:
            nodes.append(start_node(folder, layers, model="toy", fingerprint=FINGERPRINT, threads=1, **options))
        yield nodes
    finally:
        for node in nodes:
            node.stop()


class LocalMesh:
    """A head's side over clients, without HTTP, database or text."""

    def __init__(
        self,
        folder: Path,
        clients: list[NodeClient],
        *,
        fingerprint: str = FINGERPRINT,
        allow_untested: bool = False,
        **settings: Any,
    ) -> None:
        self.embedder = Embedder.load(folder, allow_untested=allow_untested)
        self.directory = NodeDirectory(clients)
        shape = self.embedder.shape
        self.settings = LoopSettings(
            fingerprint=fingerprint,
            dtype="float32",
            n_layers=shape.n_layers,
            vocab_size=shape.vocab_size,
            context_length=shape.context_length,
            **settings,
        )

    def loop(self, prompt: list[int], new_tokens: int, *, job: dict[str, Any] | None = None, **extra: Any) -> TokenLoop:
        return TokenLoop(
            self.directory,
            self.embedder,
            self.settings,
            Job(
                session_id=mint_session_id(),
                prompt_ids=prompt,
                max_new_tokens=new_tokens,
                **{"stop_ids": frozenset({EOS}), **(job or {})},
            ),
            **extra,
        )


def local_clients(nodes: list[NodeRuntime]) -> list[NodeClient]:
    return [LocalNodeClient(node, f"local:{index}") for index, node in enumerate(nodes)]
