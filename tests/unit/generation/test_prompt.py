from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from generation.errors import ContextLengthExceeded, RequestRefused
from generation.prompt import Prompter, stop_ids
from tests.toys import EOS, byte_tokenizer
from tests.unit.generation.chat_models import sentence_piece

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


@pytest.mark.parametrize("adds_eos", [False, True])
@pytest.mark.parametrize("legacy", [False, True])
def test_b10_a_raw_text_begins_with_the_bos_that_the_tokenizer_adds_and_has_nothing_behind_it(
    legacy: bool, adds_eos: bool
) -> None:
    tokenizer = sentence_piece(legacy=legacy, adds_eos=adds_eos)
    prompts = prompter(tokenizer)
    assert prompts.text_ids("hi") == [1, *tokenizer("hi", add_special_tokens=False)["input_ids"]]
    assert prompts.text_ids("<s>hi").count(1) == 1, "one that is written already counts"
    assert prompts.text_ids("") == [1]
    ids = prompts.ids(HI)
    assert ids.count(1) == 1 and ids[0] == 1
    assert tokenizer.eos_token_id not in ids


def test_b10_a_tokenizer_without_bos_adds_none() -> None:
    assert prompter().text_ids("hi") == byte_tokenizer()("hi")["input_ids"]
    assert prompter().text_ids("") == []


def test_b10_control_tokens_of_a_raw_text_are_tokens() -> None:
    assert prompter().text_ids("<|im_start|>user").count(byte_tokenizer().convert_tokens_to_ids("<|im_start|>")) == 1


def test_b08_a_template_that_refuses_says_so_in_its_own_words() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('Conversation roles must alternate') }}"
    with pytest.raises(RequestRefused, match="roles must alternate"):
        prompter(tokenizer).ids(HI)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ messages[0]['content'] + messages[0]['name'] }}", "name"),
        ("{{ messages[9]['content'] | upper + 1 }}", "."),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{% if %}", "."),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        ("{{ messages[0].role.nothing.at.all }}", "."),
    ],
)
def test_b08_whatever_goes_wrong_inside_of_a_template_is_said(template: str, reason: str) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(RequestRefused, match=reason) as refused:
        prompter(tokenizer).ids(HI)
    assert (refused.value.http_status, refused.value.param) == (400, "messages")
    assert "Traceback" not in refused.value.detail


def test_b08_an_alternating_template_says_what_it_wants() -> None:
    tokenizer = sentence_piece(legacy=False)
    with pytest.raises(RequestRefused, match="Only user and assistant roles are supported!"):
        prompter(tokenizer).ids([{"role": "system", "content": "x"}, *HI])


def test_b08_no_messages_and_an_empty_prompt_are_refused() -> None:
    with pytest.raises(RequestRefused, match="empty"):
        prompter().ids([])
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{{ '' }}"
    with pytest.raises(RequestRefused, match="no prompt"):
        prompter(tokenizer).ids(HI)


def test_b08_a_model_without_a_template_is_named() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(RequestRefused, match="no chat template"):
        prompter(tokenizer).ids(HI)


def test_c04_null_content_never_becomes_a_word() -> None:
    tokenizer = byte_tokenizer()
    for template in (tokenizer.chat_template, "{{ messages[1].content + messages[0].content }}{{ messages[1].name }}"):
        tokenizer.chat_template = template
        for message in ({"role": "assistant", "content": None, "name": None}, {"role": "assistant"}):
            text = tokenizer.decode(prompter(tokenizer).ids([*HI, message]))
            assert "hi" in text
            assert "None" not in text


def test_c06_the_field_that_holds_the_prompt_is_named() -> None:
    for prompt, asked, param in ((65, None, "prompt"), (60, 5, "max_tokens")):
        with pytest.raises(ContextLengthExceeded) as refused:
            prompter().budget(prompt, asked, param="prompt")
        assert (refused.value.param, refused.value.code) == (param, "context_length_exceeded")


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
