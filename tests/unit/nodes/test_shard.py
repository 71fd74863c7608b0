from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from nodes.errors import ShardRefused
from nodes.families import check_transformers_version
from nodes.layers import LayerRange
from nodes.shard import Embedder, ModelShard
from tests import toys


def copy_of(folder: Path, target: Path) -> Path:
    shutil.copytree(folder, target)
    return target


def change_config(folder: Path, **values: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    return folder


def parameters(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_a_shard_holds_its_own_weights_and_no_others(toy_folder: Any, toy_reference: Any) -> None:
    whole = toy_reference("llama")
    layer = parameters(whole.model.layers[0])
    first = ModelShard.load(toy_folder("llama"), LayerRange(0, 3))
    tail = ModelShard.load(toy_folder("llama"), LayerRange(3, 4))
    head = Embedder.load(toy_folder("llama"))
    assert parameters(first._model) == 3 * layer
    assert parameters(tail._model) == layer + parameters(whole.model.norm) + parameters(whole.lm_head)
    assert parameters(head._model) == parameters(whole.model.embed_tokens)
    assert parameters(whole) == sum(parameters(part._model) for part in (first, tail, head))


def test_a10_a_tied_head_is_the_embedding_on_the_tail(toy_folder: Any, toy_reference: Any) -> None:
    tail = ModelShard.load(toy_folder("llama_tied"), LayerRange(2, 4))
    assert "lm_head.weight" not in load_file(toy_folder("llama_tied") / "model.safetensors")
    embedding = toy_reference("llama_tied").get_input_embeddings().weight
    assert torch.equal(tail._model.lm_head.weight, embedding)


@pytest.mark.parametrize("lost", ["model.layers.1.mlp.up_proj.weight", "model.norm.weight", "lm_head.weight"])
def test_a10_a_missing_weight_refuses_to_start(lost: str, toy_folder: Any, tmp_path: Path) -> None:
    folder = copy_of(toy_folder("llama"), tmp_path / "broken")
    weights = load_file(folder / "model.safetensors")
    del weights[lost]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ShardRefused, match=lost):
        ModelShard.load(folder, LayerRange(0, 4))
    # What this shard does not own may well be missing.
    ModelShard.load(folder, LayerRange(2, 3))


def test_a_missing_embedding_refuses_the_head(toy_folder: Any, tmp_path: Path) -> None:
    folder = copy_of(toy_folder("llama"), tmp_path / "broken")
    weights = load_file(folder / "model.safetensors")
    del weights["model.embed_tokens.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ShardRefused, match="embed_tokens"):
        Embedder.load(folder)


def test_an_untested_model_type_is_refused_by_name(tmp_path: Path, toy_folder: Any) -> None:
    folder = change_config(copy_of(toy_folder("llama"), tmp_path / "other"), model_type="gpt2")
    with pytest.raises(ShardRefused, match="gpt2"):
        ModelShard.load(folder, LayerRange(0, 2))


def test_layers_that_do_not_exist_are_refused(toy_folder: Any) -> None:
    with pytest.raises(ShardRefused, match="0:4"):
        ModelShard.load(toy_folder("llama"), LayerRange(2, 5))


def test_a03_an_untested_transformers_is_refused_at_the_start() -> None:
    check_transformers_version("5.24.3")
    for version in ("5.23.0", "5.25.0", "4.57.1"):
        with pytest.raises(ShardRefused, match="pip install"):
            check_transformers_version(version)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_a08_positions_that_depend_on_the_length_are_refused(kind: str, toy_folder: Any, tmp_path: Path) -> None:
    rope: dict[str, Any] = {"rope_type": kind, "rope_theta": 10000.0, "factor": 4.0}
    if kind == "longrope":
        rope |= {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "original_max_position_embeddings": 128}
    else:
        rope |= {"original_max_position_embeddings": 128}
    folder = change_config(copy_of(toy_folder("llama"), tmp_path / "rope"), rope_parameters=rope)
    with pytest.raises(ShardRefused, match="MESHNET_CONTEXT_LENGTH to 128"):
        ModelShard.load(folder, LayerRange(0, 2))
    assert ModelShard.load(folder, LayerRange(0, 2), context_length=128).shape.context_length == 128


def test_the_context_length_can_be_lowered_but_not_raised(toy_folder: Any) -> None:
    folder = toy_folder("llama")
    assert ModelShard.load(folder, LayerRange(0, 1)).shape.context_length == 512
    assert ModelShard.load(folder, LayerRange(0, 1), context_length=64).shape.context_length == 64
    assert ModelShard.load(folder, LayerRange(0, 1), context_length=4096).shape.context_length == 512


@torch.inference_mode()
def test_overlapping_shards_run_in_part_give_what_one_shard_gives(toy_folder: Any) -> None:
    whole = ModelShard.load(toy_folder("llama"), LayerRange(0, 4))
    first = ModelShard.load(toy_folder("llama"), LayerRange(0, 3))
    last = ModelShard.load(toy_folder("llama"), LayerRange(1, 4))
    hidden = torch.randn(1, 9, 64)
    expected = whole.logits(hidden, 0, None)
    cut = last.logits(first.forward(hidden, 0, None, LayerRange(0, 2)), 0, None, LayerRange(2, 4))
    assert torch.allclose(cut, expected, atol=1e-5)
    assert torch.equal(whole.forward(hidden, 0, None, LayerRange(2, 2)), hidden)


def test_the_tail_keeps_soft_capping_and_scaling(toy_folder: Any, toy_reference: Any) -> None:
    """Logits, not ids: a missing scale would not change the greedy choice."""
    for family in ("granite", "gemma2"):
        n_layers = toys.CONFIGS[family]().num_hidden_layers
        tail = ModelShard.load(toy_folder(family), LayerRange(n_layers - 1, n_layers))
        head = ModelShard.load(toy_folder(family), LayerRange(0, n_layers - 1))
        with torch.inference_mode():
            hidden = Embedder.load(toy_folder(family)).embed([5, 9, 7])
            actual = tail.logits(head.forward(hidden, 0, None), 0, None)
            expected = toy_reference(family)(torch.tensor([[5, 9, 7]])).logits[0, -1]
        assert torch.allclose(actual, expected, atol=1e-5)
