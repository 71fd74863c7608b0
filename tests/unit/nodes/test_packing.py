"""Several sessions in one step: every family, whatever is packed with whatever, gives each session the text it has
alone.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nodes.families import FAMILIES
from nodes.layers import LayerRange
from nodes.packing import Part
from nodes.shard import Embedder, ModelShard
from tests import toys
from tests.meshes import ranges
from tests.toys import BAR

NEW = 12
LENGTHS = (21, 5, 13, 9)


def prompts(seed: int) -> list[list[int]]:
    made = torch.Generator().manual_seed(seed)
    return [torch.randint(1, 255, (length,), generator=made).tolist() for length in LENGTHS]


class Session:
    """One generation over some shards: pieces of its prompt, then token by token."""

    def __init__(self, shards: list[ModelShard], prompt: list[int], piece: int) -> None:
        self.caches = [shard.new_cache() for shard in shards]
        self.pieces = [prompt[start : start + piece] for start in range(0, len(prompt), piece)]
        self.ids: list[int] = []
        self.logits: list[torch.Tensor] = []
        self.held = 0

    def next_ids(self) -> list[int]:
        return self.pieces.pop(0) if self.pieces else [self.ids[-1]]


@torch.inference_mode()
def step(embedder: Embedder, shards: list[ModelShard], sessions: list[Session]) -> None:
    """All the given sessions one step further, packed."""
    sent = [session.next_ids() for session in sessions]
    hidden = [embedder.embed(ids) for ids in sent]
    for index, shard in enumerate(shards[:-1]):
        parts = [Part(row, s.held, s.caches[index]) for row, s in zip(hidden, sessions, strict=True)]
        hidden = shard.forward_packed(parts)
    parts = [Part(row, s.held, s.caches[-1]) for row, s in zip(hidden, sessions, strict=True)]
    logits = shards[-1].logits_packed(parts, [not session.pieces for session in sessions])
    for session, ids, row in zip(sessions, sent, logits, strict=True):
        session.held += len(ids)
        assert (row is None) == bool(session.pieces)
        if row is not None:
            session.logits.append(row)
            session.ids.append(int(row.argmax()))


@pytest.mark.parametrize("family", sorted(toys.CONFIGS))
def test_each_session_has_the_text_that_it_has_alone(
    toy_folder: Callable[[str], Path], toy_reference: Callable[[str], Any], family: str
) -> None:
    folder = toy_folder(family)
    n_layers = toy_reference(family).config.num_hidden_layers
    shards = [ModelShard.load(folder, layers) for layers in ranges(0, n_layers // 2, n_layers)]
    embedder = Embedder.load(folder)
    rng = random.Random(family)  # noqa: S311
    texts = prompts(rng.randrange(1000))
    sessions = [Session(shards, text, rng.choice((4, 7, 30))) for text in texts]
    while waiting := [session for session in sessions if len(session.ids) < NEW]:
        step(embedder, shards, [session for session in waiting if rng.random() < 0.8] or waiting[:1])
    for session, text in zip(sessions, texts, strict=True):
        whole = torch.tensor([text + session.ids[:-1]])
        with torch.inference_mode():
            expected = toy_reference(family)(whole).logits[0, len(text) - 1 :].float()
        assert session.ids == expected.argmax(-1).tolist()
        assert float((torch.stack(session.logits) - expected).abs().max()) < BAR


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "qwen3_next"])
def test_a_part_of_the_shard_is_packed_as_the_whole_is(toy_folder: Callable[[str], Path], family: str) -> None:
    shard = ModelShard.load(toy_folder(family), None)
    layers = LayerRange(1, 3)
    made = torch.Generator().manual_seed(3)
    rows = [torch.randn(1, length, 64, generator=made) for length in (9, 1, 4)]
    with torch.inference_mode():
        alone = [shard.forward(row, 0, shard.new_cache(layers), layers) for row in rows]
        packed = shard.forward_packed([Part(row, 0, shard.new_cache(layers)) for row in rows], layers)
    for one, other in zip(alone, packed, strict=True):
        assert torch.allclose(one, other, atol=BAR)


def test_the_model_attends_alone_again_afterwards_also_after_a_failure(toy_folder: Callable[[str], Path]) -> None:
    shard = ModelShard.load(toy_folder("llama"), None)
    usual = shard._model.config._attn_implementation
    row = torch.randn(1, 3, 64)
    with torch.inference_mode():
        shard.forward_packed([Part(row, 0, shard.new_cache()), Part(row, 0, shard.new_cache())])
        assert shard._model.config._attn_implementation == usual
        with pytest.raises(AttributeError):
            shard.forward_packed([Part(row, 0, shard.new_cache()), Part(row, 0, None)])  # type: ignore[arg-type]
    assert shard._model.config._attn_implementation == usual


def test_every_family_of_the_table_has_a_toy_that_is_packed() -> None:
    assert {toys.CONFIGS[name]().model_type for name in toys.CONFIGS} >= set(FAMILIES)
