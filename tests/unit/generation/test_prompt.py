from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from generation.errors import ContextLengthExceeded, RequestRefused
from generation.prompt import Prompter, stop_ids
from tests.toys import EOS, byte_tokenizer

HI = [{"role": "user", "content": "hi"}]


def prompter(tokenizer: Any = None, **options: Any) -> Prompter:
    options = {"context_length": 64, "stop_ids": [EOS], "default_max_tokens": 40, **options}
    return Prompter(tokenizer or byte_tokenizer(), **options)


def test_the_prompt_is_the_template_with_the_assistants_turn_opened() -> None:
    ids = prompter().ids(HI)
    assert byte_tokenizer().decode(ids) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert all(type(token_id) is int for token_id in ids)


def test_b10_there_is_exactly_one_bos() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.bos_token = "<|endoftext|>"
    tokenizer.add_bos_token = True
    tokenizer.chat_template = "<|endoftext|>" + tokenizer.chat_template
    ids = prompter(tokenizer).ids(HI)
    assert ids.count(tokenizer.bos_token_id) == 1
    assert ids[0] == tokenizer.bos_token_id


def test_b08_a_template_that_refuses_says_so_in_its_own_words() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('Conversation roles must alternate') }}"
    with pytest.raises(RequestRefused, match="roles must alternate"):
        prompter(tokenizer).ids(HI)


def test_b08_a_model_without_a_template_is_named() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(RequestRefused, match="no chat template"):
        prompter(tokenizer).ids(HI)


def test_c06_the_length_is_checked_before_any_node_is_asked() -> None:
    limits = prompter()
    for prompt, asked in ((65, None), (64, None), (60, 5), (60, 100)):
        with pytest.raises(ContextLengthExceeded, match="64 tokens"):
            limits.budget(prompt, asked)
    assert limits.budget(60, 4) == 4
    assert limits.budget(60, None) == 4, "what still fits"
    assert limits.budget(10, None) == 40, "at most the default"
    assert limits.budget(10, 54) == 54


def write(folder: Path, **files: Any) -> Path:
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def test_b07_every_end_of_text_counts(tmp_path: Path) -> None:
    folder = write(tmp_path, generation_config={"eos_token_id": [2, 7]}, config={"eos_token_id": 2})
    assert stop_ids(folder, 5) == {2, 5, 7}


def test_b07_a_model_without_generation_config_stops_on_the_tokenizers_end(tmp_path: Path) -> None:
    assert stop_ids(write(tmp_path, config={"eos_token_id": None}), 5) == {5}
    assert stop_ids(tmp_path / "nowhere", 5) == {5}


def test_special_tokens_are_not_part_of_the_text() -> None:
    assert prompter().decode([*byte_tokenizer()("ok")["input_ids"], EOS]) == "ok"


def test_encoding_adds_nothing() -> None:
    assert prompter().encode("ok") == byte_tokenizer()("ok", add_special_tokens=False)["input_ids"]
