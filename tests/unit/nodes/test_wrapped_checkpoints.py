"""Multimodal checkpoints: their text part is served exactly, and never with weights that were not found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from nodes import families, proof
from nodes.errors import ShardRefused
from nodes.layers import LayerRange
from nodes.model_files import layer_count
from nodes.shard import Embedder, ModelShard
from tests import toys
from tests.meshes import ranges

IDS = torch.randint(1, 255, (20,), generator=torch.Generator().manual_seed(5)).tolist()


@pytest.fixture(scope="module")
def wrapped(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made: dict[str, tuple[Path, Any]] = {}

    def get(kind: str) -> tuple[Path, Any]:
        if kind not in made:
            made[kind] = toys.build_wrapped(kind, tmp_path_factory.mktemp(kind))
        return made[kind]

    return get


@torch.inference_mode()
def logits_of_shards(folder: Path, cuts: tuple[int, ...]) -> torch.Tensor:
    shards = [ModelShard.load(folder, layers) for layers in ranges(*cuts)]
    caches = [shard.new_cache() for shard in shards]
    found = torch.empty(0)
    past = 0
    for piece in Embedder.load(folder).embed(IDS).split([12, 4, 4], dim=1):
        for shard, cache in zip(shards[:-1], caches[:-1], strict=True):
            piece = shard.forward(piece, past, cache)
        found = shards[-1].logits(piece, past, caches[-1])
        past += piece.shape[1]
    return found


@pytest.mark.parametrize("kind", sorted(toys.WRAPPED))
def test_the_text_part_equals_the_whole_model(kind: str, wrapped: Any) -> None:
    folder, whole = wrapped(kind)
    with torch.inference_mode():
        expected = whole(input_ids=torch.tensor([IDS])).logits[0, -1]
    n_layers = layer_count(folder)
    for cuts in ((0, n_layers // 2, n_layers), (0, 1, n_layers - 1, n_layers)):
        assert torch.allclose(logits_of_shards(folder, cuts), expected, atol=1e-4), cuts


@pytest.mark.parametrize("kind", sorted(toys.WRAPPED))
def test_the_older_way_of_naming_the_weights_is_understood_too(kind: str, wrapped: Any, tmp_path: Path) -> None:
    folder, whole = wrapped(kind)
    for path in folder.iterdir():
        if path.suffix != ".safetensors":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    renamed = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        if name.startswith("model.language_model."):
            name = name.replace("model.language_model.", "language_model.model.", 1)
        elif name.startswith("language_model.model."):
            name = name.replace("language_model.model.", "model.language_model.", 1)
        elif name.startswith("lm_head."):
            name = f"language_model.{name}"
        elif name.startswith("language_model.lm_head."):
            name = name.removeprefix("language_model.")
        renamed[name] = tensor
    save_file(renamed, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with torch.inference_mode():
        expected = whole(input_ids=torch.tensor([IDS])).logits[0, -1]
    n_layers = layer_count(folder)
    assert torch.allclose(logits_of_shards(tmp_path, (0, 2, n_layers)), expected, atol=1e-4)


@pytest.mark.parametrize("kind", sorted(toys.WRAPPED))
def test_shards_of_wrapped_checkpoints_pass_the_proof(kind: str, wrapped: Any) -> None:
    folder, _ = wrapped(kind)
    n_layers = layer_count(folder)
    for layers in (LayerRange(0, 2), LayerRange(n_layers - 1, n_layers)):
        assert proof.prove(ModelShard.load(folder, layers)).supports_kv_cache


def test_without_the_renames_the_weights_are_missed_and_not_made_up(
    wrapped: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What transformers does by itself: random weights and a warning."""
    folder, _ = wrapped("mistral3")
    monkeypatch.setitem(families.WRAPPED, "mistral3", {})
    with pytest.raises(ShardRefused, match="missing"):
        ModelShard.load(folder, LayerRange(0, 2))


def test_every_wrapped_type_of_the_table_is_tested_here() -> None:
    assert set(toys.WRAPPED) == set(families.WRAPPED)
