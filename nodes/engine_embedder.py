"""The head's embedder beside an engine in the same process."""

from __future__ import annotations

import torch

from nodes.engine import Engine
from nodes.shard import Embedder


class EngineEmbedder:
    """An embedder whose work runs on an engine's thread; answers are plain copies."""

    def __init__(self, embedder: Embedder, engine: Engine) -> None:
        self._embedder = embedder
        self._engine = engine

    def embed(self, token_ids: list[int]) -> torch.Tensor:
        def work() -> torch.Tensor:
            hidden = self._embedder.embed(token_ids)
            with torch.inference_mode(mode=False):
                return hidden.clone()

        return self._engine.submit(work).result().value
