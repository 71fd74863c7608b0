"""Turns the default model's GGUF file into a folder that transformers loads as it is. The only user of gguf."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from nodes.errors import ModelUnavailable


def convert(gguf: Path, folder: Path) -> None:
    """Saves config, generation config, float32 safetensors and the tokenizer of `gguf` into the empty `folder`.

    Takes 600 MB of memory. Raises ModelUnavailable when the file does not yield a model that can hold a chat.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    tokenizer: Any = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    if pretokenizer_name(gguf) == "smollm":
        split_digits(tokenizer)
    tokenizer.model_max_length = model.config.max_position_embeddings
    ends = {model.config.eos_token_id, model.generation_config.eos_token_id, tokenizer.eos_token_id}
    if not tokenizer.chat_template or len(ends) != 1 or None in ends:
        raise ModelUnavailable(f"{gguf.name} lacks a chat template, or names several tokens that end a turn: {ends}.")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # The weights are saved readable by their owner alone, the configs are not: let a node of another user read both.
    for path in folder.glob("*.safetensors"):
        path.chmod((folder / "config.json").stat().st_mode)


def pretokenizer_name(gguf: Path) -> str:
    from gguf import GGUFReader

    field = GGUFReader(os.fspath(gguf)).get_field("tokenizer.ggml.pre")
    return str(field.contents()) if field is not None else ""


def split_digits(tokenizer: Any) -> None:
    """Puts back the first of the two pre-tokenizers of SmolLM: each digit stands alone, then GPT-2's rule.

    The reader of GGUF files knows the second only. Without the first, a blank line before a number (every list) and
    two spaces before one become other tokens than the model was trained on.
    """
    from tokenizers import pre_tokenizers

    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
