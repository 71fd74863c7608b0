"""Every family of the tested table: shards equal the whole model, whatever is cached and however the text is cut.

`pytest tests -k architectures` runs these. One line in `tests/toys.py` and one in `nodes/families.py` add a family.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nodes.families import FAMILIES
from nodes.layers import LayerRange
from nodes.shard import Embedder, ModelShard
from tests import toys
from tests.meshes import ranges

#: Case A: correct runs measured up to 2e-6, every trap 4e-3 and more.
BAR = 1e-4
PIECES = ([20], [12, 4, 4], [6, 14], [12, *[1] * 8])

Shards = Callable[[str, tuple[int, ...]], list[ModelShard]]


@pytest.fixture(scope="module")
def shards(toy_folder: Callable[[str], Path]) -> Shards:
    loaded: dict[tuple[str, LayerRange], ModelShard] = {}

    def get(family: str, cuts: tuple[int, ...]) -> list[ModelShard]:
        found = []
        for layers in ranges(*cuts):
            key = (family, layers)
            if key not in loaded:
                loaded[key] = ModelShard.load(toy_folder(family), layers)
            found.append(loaded[key])
        return found

    return get


def prompt(length: int = 20) -> list[int]:
    return torch.randint(1, 255, (length,), generator=torch.Generator().manual_seed(5)).tolist()


def splits(family: str) -> list[tuple[int, ...]]:
    n_layers = toys.CONFIGS[family]().num_hidden_layers
    # The last leaves a shard of single layers, and of linear or sliding layers only where the family has them.
    return [(0, n_layers // 2, n_layers), (0, 1, 3, n_layers)]


@torch.inference_mode()
def last_logits(
    parts: list[ModelShard], hidden: torch.Tensor, pieces: list[int], *, cached: bool
) -> list[torch.Tensor]:
    """Logits after each piece, and the hidden states of all positions behind the last inner shard are consumed."""
    caches = [part.new_cache() if cached else None for part in parts]
    found, past = [], 0
    for piece in hidden.split(pieces, dim=1):
        start = past if cached else 0
        state = piece if cached else hidden[:, : past + piece.shape[1]]
        for part, cache in zip(parts[:-1], caches[:-1], strict=True):
            state = part.forward(state, start, cache)
        found.append(parts[-1].logits(state, start, caches[-1]))
        past += piece.shape[1]
    return found


@pytest.mark.parametrize("family", sorted(toys.CONFIGS))
def test_a01_a04_a05_pieces_on_a_cache_give_the_logits_of_the_whole(
    family: str, shards: Shards, toy_folder: Any, toy_reference: Any
) -> None:
    ids = prompt()
    with torch.inference_mode():
        expected = toy_reference(family)(torch.tensor([ids])).logits[0]
    hidden = Embedder.load(toy_folder(family)).embed(ids)
    for cuts in splits(family):
        parts = shards(family, cuts)
        for cached in (True, False):
            for pieces in PIECES:
                ends = torch.tensor(pieces).cumsum(0) - 1
                actual = torch.stack(last_logits(parts, hidden, pieces, cached=cached))
                error = float((actual - expected[ends]).abs().max())
                assert error < BAR, (family, cuts, pieces, cached)


@pytest.mark.parametrize("family", sorted(toys.CONFIGS))
def test_a09_the_head_embeds_like_the_whole_model_bit_for_bit(family: str, toy_folder: Any, toy_reference: Any) -> None:
    ids = [5, 9, 7]
    with torch.inference_mode():
        output = toy_reference(family)(torch.tensor([ids]), output_hidden_states=True)
    assert torch.equal(Embedder.load(toy_folder(family)).embed(ids), output.hidden_states[0])


def test_every_family_of_the_tested_table_is_tested_here() -> None:
    assert {toys.CONFIGS[name]().model_type for name in toys.CONFIGS} == set(FAMILIES)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen3_next"])
def test_a01_the_eager_attention_gives_the_same(
    family: str, shards: Shards, toy_folder: Any, toy_reference: Any
) -> None:
    ids = prompt()
    with torch.inference_mode():
        expected = toy_reference(family)(torch.tensor([ids])).logits[0]
    hidden = Embedder.load(toy_folder(family)).embed(ids)
    n_layers = toys.CONFIGS[family]().num_hidden_layers
    parts = [ModelShard.load(toy_folder(family), layers) for layers in ranges(0, n_layers // 2, n_layers)]
    for part in parts:
        part._model.set_attn_implementation("eager")
    for pieces in PIECES:
        ends = torch.tensor(pieces).cumsum(0) - 1
        actual = torch.stack(last_logits(parts, hidden, pieces, cached=True))
        assert float((actual - expected[ends]).abs().max()) < BAR


@pytest.mark.parametrize("cuts", [(0, 4, 8), (0, 2, 8), (0, 3, 8)])
def test_a02_a_shard_knows_its_length_also_without_attention(cuts: tuple[int, ...], shards: Shards) -> None:
    for part in shards("qwen3_next", cuts):
        cache = part.new_cache()
        with torch.inference_mode():
            part.forward(torch.randn(1, 12, 64), 0, cache)
            part.forward(torch.randn(1, 1, 64), 12, cache)
        assert cache.tokens == 13
        assert cache.get_seq_length() == 13
