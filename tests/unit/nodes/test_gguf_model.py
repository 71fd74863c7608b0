"""The converted default model: whether it talks, and whether it reads digits as it was trained to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from nodes.gguf_model import split_digits
from nodes.model_files import DEFAULT_MODEL, models_dir
from tests import toys

real_model = [
    pytest.mark.real_model,
    pytest.mark.skipif(not os.environ.get("MESHNET_REAL_MODEL_TESTS"), reason="MESHNET_REAL_MODEL_TESTS is not set."),
]


def test_digits_stand_alone_and_leave_the_blanks_before_them_together() -> None:
    tokenizer = toys.byte_tokenizer()
    split_digits(tokenizer)
    pieces = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str("Two:\n\n12  3")
    assert [piece for piece, _ in pieces] == ["Two", ":", "ĊĊ", "1", "2", "ĠĠ", "3"]


@pytest.fixture(scope="module")
def default_model() -> Path:
    folder = models_dir(settings.MESHNET_VAR_DIR) / DEFAULT_MODEL
    assert folder.is_dir(), "manage.py fetch_model makes it."
    return folder


@pytest.fixture(scope="module")
def tokenizer(default_model: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(default_model)


@pytest.mark.real_model
class TestDefaultModel:
    pytestmark = real_model

    def test_its_turns_end_with_im_end_wherever_one_looks(self, default_model: Path, tokenizer: Any) -> None:
        from transformers import AutoConfig, GenerationConfig

        config = AutoConfig.from_pretrained(default_model)
        generation = GenerationConfig.from_pretrained(default_model)
        end = tokenizer.convert_tokens_to_ids("<|im_end|>")
        assert end == 2
        assert {config.eos_token_id, generation.eos_token_id, tokenizer.eos_token_id} == {end}
        assert (config.num_hidden_layers, config.hidden_size, config.tie_word_embeddings) == (30, 576, True)
        assert tokenizer.model_max_length == config.max_position_embeddings == 8192

    def test_a_blank_line_before_a_number_is_one_token(self, tokenizer: Any) -> None:
        assert tokenizer.tokenize("Two:\n\n12  3") == ["Two", ":", "ĊĊ", "1", "2", "ĠĠ", "3"]

    def test_text_survives_the_tokenizer(self, tokenizer: Any) -> None:
        text = "  Grüße, 世界 😀\n\n1. x = 3.14\t<b>"
        assert tokenizer.decode(tokenizer.encode(text)) == text

    def test_the_capital_of_france_is_paris(self, default_model: Path, tokenizer: Any) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(default_model, dtype=torch.float32)
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": "What is the capital of France?"}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
        ids = model.generate(**prompt, do_sample=False, max_new_tokens=12)[0][prompt["input_ids"].shape[1] :]
        assert tokenizer.decode(ids) == "The capital of France is Paris.<|im_end|>"
