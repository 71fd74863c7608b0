"""A model of random weights in the exact shape of Qwen2.5-0.5B: what a step costs does not depend on their values."""

from __future__ import annotations

import shutil
from pathlib import Path

from nodes.model_files import models_dir

NAME = "Random-Qwen2.5-0.5B"
#: As in the configuration that Qwen2.5-0.5B is published with.
SHAPE = {
    "hidden_size": 896,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "intermediate_size": 4864,
    "vocab_size": 151936,
    "max_position_embeddings": 32768,
    "rope_theta": 1_000_000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
}


def random_model(var_dir: Path) -> Path:
    """The model's folder; builds it the first time (1 GB, bfloat16 as the published weights; no tokenizer)."""
    folder = models_dir(var_dir) / NAME
    if folder.is_dir():
        return folder
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config

    partial = folder.with_name(f".{NAME}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(Qwen2Config(**SHAPE), dtype=torch.bfloat16)
    model.save_pretrained(partial)
    partial.rename(folder)
    return folder
