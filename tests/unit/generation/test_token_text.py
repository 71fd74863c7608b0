from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from generation.prompt import Prompter
from generation.text import REPLACEMENT
from generation.token_text import TokenText
from tests.toys import EOS, byte_tokenizer
from tests.unit.generation.chat_models import sentence_piece
from tests.unit.generation.vocabularies import BYTE_LEVEL, LLAMA, MERGED, METASPACE, RESERVED, Vocabulary

ALL = pytest.mark.parametrize(
    "vocabulary",
    [BYTE_LEVEL, MERGED, METASPACE, LLAMA, RESERVED],
    ids=["bytes", "merged", "metaspace", "llama", "reserved"],
)


@ALL
@given(data=st.data())
def test_the_bytes_of_the_tokens_are_the_bytes_of_the_text(vocabulary: Vocabulary, data: st.DataObject) -> None:
    visible = sorted(set(vocabulary.ids.values()) - set(vocabulary.tokenizer.added_tokens_decoder))
    ids = data.draw(st.lists(st.sampled_from(visible), max_size=12))
    tokens = TokenText(vocabulary.tokenizer)
    joined = bytes(byte for token_id in ids for byte in tokens.bytes(token_id) or [])
    text = vocabulary.decode(ids)
    if REPLACEMENT not in text:  # of broken bytes each decoder makes something else
        # A decoder drops the space that a text begins with.
        assert text in (joined.decode(), joined.decode().removeprefix(" "))


@ALL
def test_a_special_token_stands_for_its_name(vocabulary: Vocabulary) -> None:
    tokens = TokenText(vocabulary.tokenizer)
    end = vocabulary.ids["<|im_end|>"]
    assert tokens.text(end) == "<|im_end|>"
    assert tokens.bytes(end) == list(b"<|im_end|>")


def test_part_of_a_character_has_its_byte_and_no_text_of_its_own() -> None:
    for vocabulary in (BYTE_LEVEL, METASPACE, LLAMA):
        tokens = TokenText(vocabulary.tokenizer)
        (token_id,) = vocabulary.byte_ids(b"\xe6")
        assert (tokens.bytes(token_id), tokens.text(token_id)) == ([0xE6], REPLACEMENT)


def test_b04_a_word_keeps_the_space_it_begins_with() -> None:
    for vocabulary in (METASPACE, LLAMA):
        (token_id,) = vocabulary.word_ids("\u2581Hello")
        assert TokenText(vocabulary.tokenizer).text(token_id) == " Hello"


def test_ids_without_a_token_have_neither() -> None:
    for tokenizer in (byte_tokenizer(), sentence_piece(legacy=True)):
        tokens = TokenText(tokenizer)
        for token_id in (100_000, 2**31):
            assert tokens.bytes(token_id) is None
            assert tokens.text(token_id) == ""


def test_a_vocabulary_that_does_not_say_its_bytes_gives_text_alone() -> None:
    tokenizer = Tokenizer(models.WordLevel({"hello": 0, "##s": 1, "<unk>": 2}, unk_token="<unk>"))
    tokenizer.decoder = decoders.WordPiece()
    tokens = TokenText(PreTrainedTokenizerFast(tokenizer_object=tokenizer))
    assert (tokens.text(0), tokens.bytes(0)) == ("hello", None)


def test_the_prompter_answers_for_them() -> None:
    prompter = Prompter(byte_tokenizer(), context_length=64, stop_ids=[EOS], default_max_tokens=40)
    (token_id,) = prompter.encode("a")
    assert (prompter.token_text(token_id), prompter.token_bytes(token_id)) == ("a", [97])
