"""The mesh as a contender: the head's own loop in this process, over node processes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.conf import settings

from generation.directory import NodeDirectory
from generation.head import TokenLoop
from generation.job import Job, LoopSettings
from meshsite.bench.nodes import NodeGroup
from nodes.client import HttpNodeClient, NodeClient
from nodes.errors import MeshnetError
from nodes.model_files import ModelFiles
from nodes.shard import Embedder
from nodes.wire import Timings, mint_session_id

RELEASE_SECONDS = 10.0


@dataclass(frozen=True)
class Hop:
    """One answered step on one node: milliseconds as the head saw it, and as the node said."""

    url: str
    tokens: int
    total_ms: float
    timings: Timings

    @property
    def overhead_ms(self) -> float:
        """HTTP, framing and queue: all but the computing."""
        return max(0.0, self.total_ms - self.timings.compute_ms)

    @property
    def network_ms(self) -> float:
        """HTTP and framing."""
        return max(0.0, self.overhead_ms - self.timings.queue_ms)


class Ledger(NodeDirectory):
    """A directory that keeps every step that was measured."""

    def __init__(self, nodes: Sequence[NodeClient]) -> None:
        super().__init__(nodes)
        self.hops: list[Hop] = []

    def measured(self, url: str, layers: int, tokens: int, total_ms: float, timings: Timings) -> None:
        super().measured(url, layers, tokens, total_ms, timings)
        self.hops.append(Hop(url, tokens, total_ms, timings))


@dataclass
class TimedEmbedder:
    """The head's part before layer 0, and how long each call took in milliseconds."""

    embedder: Embedder
    calls_ms: list[float] = field(default_factory=list)

    def embed(self, token_ids: list[int]) -> Any:
        begun = time.perf_counter()
        hidden = self.embedder.embed(token_ids)
        self.calls_ms.append((time.perf_counter() - begun) * 1e3)
        return hidden


class Mesh:
    """A contender; its loops may also be stepped one by one, and several at once by as many threads."""

    def __init__(
        self,
        name: str,
        group: NodeGroup,
        model: ModelFiles,
        embedder: Embedder,
        dtype: str,
        *,
        urls: Sequence[str] | None = None,
        close: Callable[[], None] = lambda: None,
        **loop_settings: Any,
    ) -> None:
        """`urls` are those under which the head reaches the group's nodes, where proxies stand before them."""
        self.name = name
        self.setup = f"{group.threads} thread{'s' if group.threads > 1 else ''} a node"
        self.group = group
        self.urls = list(group.urls if urls is None else urls)
        self.clients = [HttpNodeClient(url, group.secret) for url in self.urls]
        self.ledger = Ledger(self.clients)
        self.embedder = TimedEmbedder(embedder)
        self._model = model
        self._dtype = dtype
        self._close = close
        shape = embedder.shape
        self._settings = LoopSettings(
            model.fingerprint,
            dtype,
            shape.n_layers,
            shape.vocab_size,
            shape.context_length,
            piece_tokens=settings.MESHNET_PREFILL_PIECE_TOKENS,
            **loop_settings,
        )

    def beside(self, name: str, urls: Sequence[str], **loop_settings: Any) -> Mesh:
        """The same nodes reached in another way; closing it leaves the nodes alone."""
        return Mesh(name, self.group, self._model, self.embedder.embedder, self._dtype, urls=urls, **loop_settings)

    @contextlib.contextmanager
    def answering(self, prompt: list[int], new_tokens: int, *, cache: bool = True) -> Iterator[Iterator[int]]:
        """The new tokens of one generation, whose session is released at the end."""
        job = Job(mint_session_id(), prompt, new_tokens, stop_ids=frozenset(), cache=cache)
        loop = TokenLoop(self.ledger, self.embedder, self._settings, job)
        tokens = loop.tokens()
        try:
            yield tokens
        finally:
            tokens.close()
            for url in sorted(loop.progress.touched):
                with contextlib.suppress(MeshnetError):  # the time to live frees it
                    self.ledger.client(url).release(job.session_id, timeout=RELEASE_SECONDS)

    def generate(self, prompt: list[int], new_tokens: int, *, cache: bool = True) -> list[float]:
        with self.answering(prompt, new_tokens, cache=cache) as tokens:
            return [time.perf_counter(), *(time.perf_counter() for _ in tokens)]

    def memory(self) -> dict[str, int | None]:
        return {
            f"node {number}": client.status(timeout=10).get("rss_bytes")
            for number, client in enumerate(self.clients, start=1)
        }

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self._close()
