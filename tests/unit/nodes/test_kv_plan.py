from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from nodes import kv_plan, proof
from nodes.errors import ModelUnavailable, ShardRefused
from nodes.kv_plan import ShardPlan, config_folder, plan_head, plan_shard, weight_bytes
from nodes.layers import LayerRange
from nodes.shard import Embedder, ModelShard, read_blueprint
from tests import toys
from tests.meshes import ranges
from tests.unit.nodes.test_families import gemma4, save


@pytest.fixture
def config_only(toy_folder: Any, tmp_path: Path) -> Any:
    """A folder with the configuration of a toy and nothing else."""

    def copy(family: str) -> Path:
        folder = tmp_path / family
        folder.mkdir()
        shutil.copy(toy_folder(family) / "config.json", folder)
        return folder

    return copy


@pytest.mark.parametrize("family", sorted(toys.CONFIGS))
def test_the_plan_of_every_family_is_what_the_real_shard_takes(family: str, toy_folder: Any, config_only: Any) -> None:
    blueprint = read_blueprint(config_only(family))
    n_layers = blueprint.shape.n_layers
    for layers in ranges(0, 2, n_layers - 1, n_layers):
        plan = plan_shard(blueprint, layers, torch.float32)
        real = ModelShard.load(toy_folder(family), layers)
        assert plan.footprint == proof.prove(real).footprint
        assert plan.weight_bytes == weight_bytes(real._model) > 0
    head = Embedder.load(toy_folder(family))
    assert plan_head(blueprint, torch.float32) == weight_bytes(head._model) == toys.VOCAB * 64 * 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["llama_tied", "mistral", "gpt_oss", "qwen3_moe", "qwen3_next", "lfm2"])
def test_so_it_is_in_16_bit(family: str, dtype: torch.dtype, toy_folder: Any) -> None:
    layers = LayerRange(1, toys.CONFIGS[family]().num_hidden_layers)
    plan = plan_shard(read_blueprint(toy_folder(family)), layers, dtype)
    real = ModelShard.load(toy_folder(family), layers, dtype=dtype)
    with torch.inference_mode():
        cache = real.new_cache()
        real.forward(torch.zeros(1, 20, 64, dtype=dtype), 0, cache)
    assert plan.footprint == cache.footprint()
    assert plan.weight_bytes == weight_bytes(real._model)


def test_tied_embeddings_count_once_and_on_the_tail_alone(toy_folder: Any) -> None:
    embeddings = toys.VOCAB * 64 * 4
    inner, tail = (
        plan_shard(read_blueprint(toy_folder("llama_tied")), layers, torch.float32) for layers in ranges(1, 2, 4)
    )
    norm = 64 * 4
    assert tail.weight_bytes == 2 * inner.weight_bytes + embeddings + norm


@pytest.mark.parametrize("kind", sorted(toys.WRAPPED))
def test_the_text_part_of_a_wrapped_checkpoint_is_planned(kind: str, tmp_path: Path) -> None:
    folder, _ = toys.build_wrapped(kind, tmp_path)
    layers = LayerRange(1, 3)
    plan = plan_shard(read_blueprint(folder), layers, torch.float32)
    real = ModelShard.load(folder, layers)
    assert (plan.footprint, plan.weight_bytes) == (proof.prove(real).footprint, weight_bytes(real._model))


def test_a11_layers_that_reuse_keys_take_no_cache_of_their_own(tmp_path: Path) -> None:
    blueprint = read_blueprint(save(gemma4(), tmp_path), allow_untested=True)
    plan = plan_shard(blueprint, LayerRange(2, 6), torch.float32)
    real = ModelShard.load(tmp_path, LayerRange(2, 6), allow_untested=True)
    assert plan.footprint == proof.prove(real).footprint
    assert [layer.per_token > 0 for layer in plan.footprint.layers] == [False, False, True, True, False, False]
    with pytest.raises(ShardRefused, match=r"4 \(of 2\)"):
        plan_shard(blueprint, LayerRange(3, 6), torch.float32)


def test_layers_that_are_not_there_are_refused(toy_folder: Any) -> None:
    with pytest.raises(ShardRefused, match="0:4"):
        plan_shard(read_blueprint(toy_folder("llama")), LayerRange(2, 5), torch.float32)


def test_quantised_weights_are_not_guessed_at(toy_folder: Any) -> None:
    blueprint = read_blueprint(toy_folder("llama"))
    blueprint.config.quantization_config = {"quant_method": "mxfp4"}
    with pytest.raises(ShardRefused, match="quantised"):
        plan_shard(blueprint, LayerRange(0, 2), torch.float32)


def test_what_cannot_run_without_weights_is_refused_and_no_crash(toy_folder: Any, monkeypatch: Any) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise NotImplementedError("values are needed here")

    monkeypatch.setattr(ModelShard, "forward", fail)
    with pytest.raises(ShardRefused, match="without weights: NotImplementedError"):
        plan_shard(read_blueprint(toy_folder("llama")), LayerRange(0, 2), torch.float32)


def test_sessions_are_what_fits_beside_the_weights(toy_folder: Any) -> None:
    plan = plan_shard(read_blueprint(toy_folder("llama")), LayerRange(0, 2), torch.float32)
    session = 100 * 2 * 2 * 2 * 16 * 4  # tokens x layers x keys and values x heads x values x bytes
    assert plan.footprint.bytes(100) == session
    assert plan.sessions(100, plan.weight_bytes + 3 * session) == 3
    assert plan.sessions(100, plan.weight_bytes + 3 * session - 1) == 2
    assert plan.sessions(100, plan.weight_bytes) == 0
    assert plan.sessions(100, 1) == 0


def test_a_window_stops_growing_with_the_context(toy_folder: Any) -> None:
    plan = plan_shard(read_blueprint(toy_folder("mistral")), LayerRange(0, 2), torch.float32)
    assert plan.footprint.bytes(500) == plan.footprint.bytes(7) > plan.footprint.bytes(6)


def test_a_model_is_found_by_folder_name_or_hub_id(toy_folder: Any, config_only: Any, tmp_path: Path) -> None:
    folder = config_only("llama")
    assert config_folder(str(folder), tmp_path) == folder
    kept = tmp_path / "var" / "models" / "mine"
    kept.parent.mkdir(parents=True)
    folder.rename(kept)
    assert config_folder("mine", tmp_path / "var") == kept


def test_a_model_that_is_not_there_is_refused_with_advice(tmp_path: Path, monkeypatch: Any) -> None:
    for name in ("nothing-here", "", "/no/such/folder"):
        with pytest.raises(ModelUnavailable, match="There is no model"):
            config_folder(name, tmp_path)
    with pytest.raises(ModelUnavailable, match=r"holds no config\.json"):
        config_folder(str(tmp_path), tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelUnavailable, match="owner/name cannot be fetched"):
        config_folder("owner/name", tmp_path)


def test_the_json_of_a_plan(toy_folder: Any) -> None:
    plan = plan_shard(read_blueprint(toy_folder("llama")), LayerRange(0, 2), torch.float32)
    assert isinstance(plan, ShardPlan)
    (row,) = kv_plan.as_json([plan], 10, plan.weight_bytes + 5120 * 4)
    assert row == {
        "layers": "0:2",
        "weight_bytes": plan.weight_bytes,
        "kv_bytes_per_token": 512,
        "kv_bytes_per_session": 5120,
        "sessions": 4,
    }
    assert kv_plan.as_json([plan], 10, None)[0]["sessions"] is None
