"""Toy models and tokenizers, built on the spot: random weights, every family of the tested table, no file shipped.

Sizes follow `TOY-LLAMA` and its siblings: small enough for milliseconds a step, with enough layers for real splits.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as t
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

#: Logits that differ by less are equal. Case A: correct runs measured up to 2e-6, every trap 4e-3 and more.
BAR = 1e-4
VOCAB = 320
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
EOS = 258
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": None,
    "eos_token_id": EOS,
    "pad_token_id": 0,
}
_SIX = {**_COMMON, "num_hidden_layers": 6}
_HEADS = {"head_dim": 16}
_MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
_HYBRID = ["linear_attention", "linear_attention", "full_attention"] * 2

CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: t.LlamaConfig(**_COMMON, **_HEADS),
    "llama_tied": lambda: t.LlamaConfig(**_COMMON, **_HEADS, tie_word_embeddings=True),
    "qwen2": lambda: t.Qwen2Config(**_SIX),
    "qwen2_window": lambda: t.Qwen2Config(**_SIX, use_sliding_window=True, sliding_window=8, max_window_layers=2),
    "qwen3": lambda: t.Qwen3Config(**_SIX, **_HEADS),
    "qwen3_moe": lambda: t.Qwen3MoeConfig(**_COMMON, **_HEADS, **_MOE),
    "mixtral": lambda: t.MixtralConfig(**_COMMON, **_HEADS, num_local_experts=4),
    "mistral": lambda: t.MistralConfig(**_COMMON, **_HEADS, sliding_window=8),
    "gemma2": lambda: t.Gemma2Config(**_SIX, **_HEADS, sliding_window=8),
    "gemma3_text": lambda: t.Gemma3TextConfig(
        **_SIX, **_HEADS, sliding_window=8, layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2
    ),
    "olmo2": lambda: t.Olmo2Config(**_SIX),
    "phi3": lambda: t.Phi3Config(**_SIX),
    "glm4": lambda: t.Glm4Config(**_SIX, **_HEADS),
    "gpt_oss": lambda: t.GptOssConfig(
        **_SIX,
        **_HEADS,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention"] * 3,
    ),
    "granite": lambda: t.GraniteConfig(**_SIX, embedding_multiplier=12.0, logits_scaling=4.0),
    "lfm2": lambda: t.Lfm2Config(**_SIX, layer_types=["conv", "conv", "full_attention"] * 2),
    "qwen3_next": lambda: t.Qwen3NextConfig(
        **{**_COMMON, "num_hidden_layers": 8},
        **_HEADS,
        **_MOE,
        **_LINEAR,
        shared_expert_intermediate_size=32,
        layer_types=["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 2,
    ),
    "qwen3_5_text": lambda: t.Qwen3_5TextConfig(**_SIX, **_HEADS, **_LINEAR, layer_types=_HYBRID),
    "qwen3_5_moe_text": lambda: t.Qwen3_5MoeTextConfig(
        **_SIX, **_HEADS, **_MOE, **_LINEAR, shared_expert_intermediate_size=32, layer_types=_HYBRID
    ),
}


def build_model(family: str, folder: Path, *, seed: int = 0) -> Path:
    """Saves a toy model of the family with the byte tokenizer; returns the folder."""
    config = CONFIGS[family]()
    # Wider weights give texts that change from token to token. The families named here do so with less of it; more
    # would only magnify fp32 rounding until it looks like an error.
    spread = 3 if family.startswith(("gemma", "granite", "lfm2", "qwen3_next", "qwen3_5")) else 10
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(spread)
    model.generation_config.eos_token_id = EOS
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


_VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}

_QWEN_VISION: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 2,
    "out_hidden_size": 64,
}

#: Multimodal checkpoints around a text model: outer type -> how to build it.
WRAPPED: dict[str, Callable[[], Any]] = {
    "gemma3": lambda: t.Gemma3ForConditionalGeneration(
        t.Gemma3Config(text_config=CONFIGS["gemma3_text"]().to_dict(), vision_config=_VISION, mm_tokens_per_image=4)
    ),
    "mistral3": lambda: t.Mistral3ForConditionalGeneration(
        t.Mistral3Config(
            text_config=CONFIGS["mistral"]().to_dict(),
            vision_config={**_VISION, "model_type": "pixtral"},
            tie_word_embeddings=False,
        )
    ),
    "qwen3_5": lambda: t.Qwen3_5ForConditionalGeneration(
        t.Qwen3_5Config(
            text_config=CONFIGS["qwen3_5_text"]().to_dict(),
            vision_config=_QWEN_VISION,
        )
    ),
    "qwen3_5_moe": lambda: t.Qwen3_5MoeForConditionalGeneration(
        t.Qwen3_5MoeConfig(
            text_config=CONFIGS["qwen3_5_moe_text"]().to_dict(),
            vision_config=_QWEN_VISION,
        )
    ),
}


def build_wrapped(kind: str, folder: Path) -> tuple[Path, Any]:
    """Saves a multimodal toy; returns the folder and the whole model, whose text-only answers are the reference."""
    torch.manual_seed(0)
    model = WRAPPED[kind]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(3)
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder, model


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """BYTE-TOK: byte-level, no merges: every byte is one token, so every emoji is split over four."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: index for index, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def reference_model(folder: Path) -> Any:
    """REF: the same weights whole, in one process."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def reference_ids(model: Any, prompt: list[int], new_tokens: int) -> list[int]:
    """Greedy ids of `generate()`, ending early at the end-of-sequence token, which is left out."""
    output = model.generate(torch.tensor([prompt]), max_new_tokens=new_tokens, do_sample=False)
    ids: list[int] = output[0, len(prompt) :].tolist()
    return ids[:-1] if ids and ids[-1] == EOS else ids
