from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from meshsite.bench import random_model
from meshsite.bench.random_model import NAME, SHAPE


def test_it_has_as_many_weights_as_the_published_model() -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(Qwen2Config(**SHAPE))
    assert model.num_parameters() == 494_032_768


def test_it_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
    monkeypatch.setattr(random_model, "SHAPE", {**SHAPE, **small, "vocab_size": 50})
    folder = random_model.random_model(tmp_path)
    assert folder == tmp_path / "models" / NAME
    assert (folder / "model.safetensors").exists()
    (folder / "mark").touch()
    assert random_model.random_model(tmp_path) == folder
    assert (folder / "mark").exists()


def test_half_a_model_is_built_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
    monkeypatch.setattr(random_model, "SHAPE", {**SHAPE, **small, "vocab_size": 50})
    partial = tmp_path / "models" / f".{NAME}.partial"
    partial.mkdir(parents=True)
    (partial / "left").touch()
    folder = random_model.random_model(tmp_path)
    assert not (folder / "left").exists()
    assert not partial.exists()
