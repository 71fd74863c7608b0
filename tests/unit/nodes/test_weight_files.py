from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from nodes import proof
from nodes.errors import ShardRefused
from nodes.layers import LayerRange
from nodes.shard import Embedder, ModelShard, part_of, read_blueprint
from nodes.weight_files import INDEX, needed_files, view_of


@pytest.fixture(scope="module")
def many_files(toy_folder: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """many_files("llama") is the toy once more, saved in many small files."""

    def save(family: str) -> Path:
        folder = tmp_path_factory.mktemp(f"{family}-files")
        AutoModelForCausalLM.from_pretrained(toy_folder(family)).save_pretrained(folder, max_shard_size="20KB")
        assert len(list(folder.glob("*.safetensors"))) > 5
        return folder

    return save


def keep_only(folder: Path, names: set[str], target: Path) -> Path:
    target.mkdir()
    for path in folder.iterdir():
        if path.suffix != ".safetensors" or path.name in names:
            (target / path.name).write_bytes(path.read_bytes())
    return target


def needed(folder: Path, layers: LayerRange | None) -> set[str]:
    names = needed_files(folder, part_of(read_blueprint(folder), layers))
    assert names is not None
    return names


@pytest.mark.parametrize("family", ["llama", "llama_tied", "qwen3_moe", "lfm2", "gemma3_text"])
def test_a_shard_loads_with_nothing_here_but_the_files_of_its_layers(
    family: str, many_files: Any, toy_folder: Any, tmp_path: Path
) -> None:
    folder = many_files(family)
    n_layers = read_blueprint(folder).shape.n_layers
    everything = {path.name for path in folder.glob("*.safetensors")}
    for layers in (LayerRange(0, 1), LayerRange(1, 3), LayerRange(n_layers - 1, n_layers)):
        names = needed(folder, layers)
        assert names < everything
        part = ModelShard.load(keep_only(folder, names, tmp_path / f"part{layers.start}"), layers)
        assert proof.prove(part).supports_kv_cache
        whole = ModelShard.load(toy_folder(family), layers)
        assert all(
            torch.equal(a, b)
            for a, b in zip(part._model.state_dict().values(), whole._model.state_dict().values(), strict=True)
        )
    head = Embedder.load(keep_only(folder, needed(folder, None), tmp_path / "head"))
    assert torch.equal(head.embed([5, 9, 7]), Embedder.load(toy_folder(family)).embed([5, 9, 7]))


def test_the_parts_together_need_every_file(many_files: Any) -> None:
    folder = many_files("llama")
    parts = [needed(folder, LayerRange(layer, layer + 1)) for layer in range(4)]
    assert set.union(needed(folder, None), *parts) == {path.name for path in folder.glob("*.safetensors")}


def test_a_needed_file_that_is_not_here_is_named(many_files: Any, tmp_path: Path) -> None:
    folder = many_files("llama")
    (absent, *rest) = sorted(needed(folder, LayerRange(1, 2)))
    part = keep_only(folder, set(rest), tmp_path / "part")
    with pytest.raises(ShardRefused, match=absent):
        ModelShard.load(part, LayerRange(1, 2))


def test_a_model_in_one_file_is_loaded_from_where_it_lies(toy_folder: Any) -> None:
    folder = toy_folder("llama")
    part = part_of(read_blueprint(folder), LayerRange(0, 1))
    assert needed_files(folder, part) is None
    with view_of(folder, part) as view:
        assert view == folder


def test_a_view_shows_the_needed_files_and_vanishes(many_files: Any) -> None:
    folder = many_files("llama")
    part = part_of(read_blueprint(folder), LayerRange(1, 2))
    with view_of(folder, part) as view:
        assert {path.name for path in view.glob("*.safetensors")} == needed(folder, LayerRange(1, 2))
        index = json.loads((view / INDEX).read_text())["weight_map"]
        assert set(index.values()) == needed(folder, LayerRange(1, 2))
        assert (view / "config.json").exists()
    assert not view.exists()


def test_the_encoder_for_images_is_not_taken_for_layers_of_the_text(tmp_path: Path) -> None:
    from nodes.families import WRAPPED
    from nodes.weight_files import Part

    part = Part(LayerRange(0, 1), renames=WRAPPED["gemma3"])
    assert part.needs("language_model.model.layers.0.mlp.up_proj.weight")
    assert not part.needs("language_model.model.layers.1.mlp.up_proj.weight")
    assert not part.needs("vision_tower.encoder.layers.0.mlp.fc1.weight")
    assert not part.needs("multi_modal_projector.norm.weight")
    assert Part(LayerRange(0, 1), embeddings=True, renames=WRAPPED["gemma3"]).needs(
        "model.language_model.embed_tokens.weight"
    )
