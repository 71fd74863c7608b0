from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from nodes import proof
from nodes.blocked_linear import BlockedLinear, block_weights
from nodes.layers import LayerRange
from nodes.packing import Part
from nodes.shard import Embedder, ModelShard
from tests import toys
from tests.meshes import ranges
from tests.toys import BAR


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(48, 32), (7, 5), (1, 3), (100, 64)])
def test_it_gives_what_the_plain_layer_gives_whatever_the_rows(shape: tuple[int, int], bias: bool) -> None:
    plain = nn.Linear(shape[1], shape[0], bias=bias).requires_grad_(False)
    blocked = BlockedLinear(plain)
    for rows in ((1, 0), (1, 1), (1, 2), (1, 3), (1, 4), (1, 9), (3, 1), (2, 2), (1,), (5,), ()):
        values = torch.randn(*rows, shape[1])
        found = blocked(values)
        assert found.shape == (*rows, shape[0])
        assert torch.allclose(found, plain(values), atol=1e-5)


def test_a_view_that_is_not_contiguous_is_read_as_it_is_seen() -> None:
    plain = nn.Linear(6, 4).requires_grad_(False)
    for rows in (1, 2, 5):
        values = torch.randn(6, rows).t()
        assert torch.allclose(BlockedLinear(plain)(values), plain(values), atol=1e-6)


def test_only_plain_fp32_layers_are_exchanged() -> None:
    class Own(nn.Linear):
        pass

    model = nn.ModuleDict({"plain": nn.Linear(4, 4), "own": Own(4, 4), "short": nn.Linear(4, 4, dtype=torch.bfloat16)})
    assert block_weights(model.requires_grad_(False)) == 16
    assert isinstance(model["plain"], BlockedLinear)
    assert type(model["own"]) is Own
    assert type(model["short"]) is nn.Linear


def test_a_kernel_that_gives_other_numbers_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    product = BlockedLinear._product
    monkeypatch.setattr(BlockedLinear, "_product", lambda self, rows: product(self, rows) * 1.001)
    model = nn.Sequential(nn.Linear(8, 8)).requires_grad_(False)
    assert block_weights(model) == 0
    assert type(model[0]) is nn.Linear


def test_a_torch_without_the_kernels_keeps_the_plain_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(self: Any, plain: Any) -> None:
        raise AttributeError("'_OpNamespace' 'mkldnn' object has no attribute '_linear_pointwise'")

    monkeypatch.setattr(BlockedLinear, "__init__", missing)
    model = nn.Sequential(nn.Linear(8, 8)).requires_grad_(False)
    assert block_weights(model) == 0
    assert type(model[0]) is nn.Linear


def test_the_plain_weights_are_not_kept_beside_the_blocked_ones(toy_folder: Callable[[str], Path]) -> None:
    shard = ModelShard.load(toy_folder("llama_tied"), LayerRange(2, 4))
    before = sum(parameter.numel() for parameter in shard._model.parameters())
    mapped = {parameter.data_ptr() for parameter in shard._model.parameters()}
    blocked = shard.block_weights()
    left = list(shard._model.parameters())
    assert sum(parameter.numel() for parameter in left) + blocked == before
    assert not mapped & {parameter.data_ptr() for parameter in left}, "one weight in the file keeps all of its pages"


@pytest.mark.parametrize("family", sorted(toys.CONFIGS))
@torch.inference_mode()
def test_every_family_has_the_logits_of_the_whole_model(
    toy_folder: Callable[[str], Path], toy_reference: Callable[[str], Any], family: str
) -> None:
    folder, reference = toy_folder(family), toy_reference(family)
    n_layers = reference.config.num_hidden_layers
    shards = [ModelShard.load(folder, layers) for layers in ranges(0, n_layers // 2, n_layers)]
    for shard in shards:
        assert shard.block_weights() > 0
        assert proof.prove(shard).supports_kv_cache
    text = torch.randint(1, 255, (26,), generator=torch.Generator().manual_seed(11)).tolist()
    expected = reference(torch.tensor([text])).logits[0].float()
    embedder = Embedder.load(folder)

    alone, packed, beside = ([shard.new_cache() for shard in shards] for _ in range(3))
    past = 0
    for piece in (12, 4, 3, 2, 1, 1, 1, 1, 1):
        hidden = embedder.embed(text[past : past + piece])
        row = shards[0].forward(hidden, past, alone[0])
        logits = shards[1].logits(row, past, alone[1])
        assert float((logits - expected[past + piece - 1]).abs().max()) < BAR
        both = [Part(hidden, past, packed[0]), Part(hidden, past, beside[0])]
        rows = shards[0].forward_packed(both)
        both = [Part(rows[0], past, packed[1]), Part(rows[1], past, beside[1])]
        for found in shards[1].logits_packed(both, [True, True]):
            assert found is not None
            assert float((found - expected[past + piece - 1]).abs().max()) < BAR
        past += piece
