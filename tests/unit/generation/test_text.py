from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from generation.text import KEPT_TOKENS, MOST_HELD_TOKENS, REPLACEMENT, Detokenizer, find_lone_byte
from tests.unit.generation.vocabularies import (
    BYTE_LEVEL,
    FAMILY,
    LLAMA,
    MERGED,
    METASPACE,
    SentencePiece,
    Vocabulary,
    token_ids,
)

ALL = pytest.mark.parametrize(
    "vocabulary", [BYTE_LEVEL, MERGED, METASPACE, LLAMA], ids=["bytes", "merged", "metaspace", "llama"]
)
SENTENCE_PIECE = pytest.mark.parametrize("vocabulary", [METASPACE, LLAMA], ids=["metaspace", "llama"])


def stream(decode: Callable[[list[int]], str], ids: list[int]) -> tuple[list[str], str]:
    """The pieces as they come, and what the flush adds."""
    detokenizer = Detokenizer(decode)
    return [detokenizer.push(token_id) for token_id in ids], detokenizer.flush()


@ALL
@given(data=st.data())
@settings(max_examples=400, deadline=None)
def test_the_pieces_joined_are_what_decoding_all_ids_at_once_gives(vocabulary: Vocabulary, data: st.DataObject) -> None:
    ids = data.draw(token_ids(vocabulary))
    pieces, rest = stream(vocabulary.decode, ids)
    assert "".join(pieces) + rest == vocabulary.decode(ids)


@pytest.mark.parametrize("vocabulary", [BYTE_LEVEL, MERGED], ids=["bytes", "merged"])
@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_long_byte_level_streams_join_to_the_whole_text_however_broken(
    vocabulary: Vocabulary, data: st.DataObject
) -> None:
    cycle = data.draw(st.lists(st.integers(0, max(vocabulary.ids.values())), min_size=1, max_size=5))
    ids = [*data.draw(token_ids(vocabulary)), *(cycle * 250)[:300], *data.draw(token_ids(vocabulary))]
    pieces, rest = stream(vocabulary.decode, ids)
    assert "".join(pieces) + rest == vocabulary.decode(ids)


@ALL
@given(text=st.text(alphabet="ab \n\u00e9\u65e5\u672c" + FAMILY, max_size=30))
@settings(max_examples=100, deadline=None)
def test_b01_no_piece_ever_holds_part_of_a_character(vocabulary: Vocabulary, text: str) -> None:
    pieces, rest = stream(vocabulary.decode, vocabulary.byte_ids(text.encode()))
    assert REPLACEMENT not in "".join(pieces) + rest
    assert "".join(pieces) + rest == vocabulary.decode(vocabulary.byte_ids(text.encode()))


def test_b01_an_emoji_of_eighteen_tokens_arrives_whole_and_at_once() -> None:
    text = f"ok {FAMILY} \u65e5\u672c\u8a9e \u00e9."
    pieces, rest = stream(BYTE_LEVEL.decode, BYTE_LEVEL.byte_ids(text.encode()))
    assert "".join(pieces) == text
    assert rest == ""
    assert [piece for piece in pieces if piece] == list(text)


def test_b03_invalid_bytes_flow_and_the_text_after_them_is_complete() -> None:
    pieces, rest = stream(BYTE_LEVEL.decode, BYTE_LEVEL.byte_ids(b"\xff" * 40 + b"hello"))
    assert "".join(pieces) + rest == REPLACEMENT * 40 + "hello"
    assert "".join(pieces[:10]).count(REPLACEMENT) >= 6
    assert pieces[-1] == "o"


@SENTENCE_PIECE
def test_b03_invalid_bytes_flow_with_byte_fallback_too(vocabulary: SentencePiece) -> None:
    ids = [*vocabulary.byte_ids(b"\xff" * 40), *vocabulary.word_ids("\u2581Hello")]
    pieces, rest = stream(vocabulary.decode, ids)
    assert "".join(pieces) + rest == REPLACEMENT * 40 + " Hello"
    assert "".join(pieces[:10]).count(REPLACEMENT) >= 6


@pytest.mark.parametrize("vocabulary", [BYTE_LEVEL, METASPACE, LLAMA], ids=["bytes", "metaspace", "llama"])
def test_b03_a_real_replacement_character_passes_through(vocabulary: Vocabulary) -> None:
    ids = vocabulary.byte_ids(f"a{REPLACEMENT}b".encode())
    pieces, rest = stream(vocabulary.decode, ids)
    assert "".join(pieces) + rest == f"a{REPLACEMENT}b"


@SENTENCE_PIECE
def test_b04_spaces_and_indents_survive(vocabulary: SentencePiece) -> None:
    ids = [
        *vocabulary.word_ids("\u2581Hello", "\u2581world", "\u2581", "\u2581two", "\u2581", "spaces"),
        *vocabulary.byte_ids(b"\n"),
        *vocabulary.word_ids("\u2581\u2581", "indented"),
    ]
    pieces, rest = stream(vocabulary.decode, ids)
    assert "".join(pieces) + rest == vocabulary.decode(ids) == "Hello world  two spaces\n  indented"


@ALL
def test_b07_special_tokens_leave_no_text_and_do_not_break_a_character_or_a_space(
    vocabulary: Vocabulary,
) -> None:
    first, *rest_of_character = vocabulary.byte_ids("\u65e5".encode())
    end = vocabulary.ids["<|im_end|>"]
    ids = [
        end,
        *vocabulary.byte_ids(b"a"),
        first,
        *[end] * 5,
        *rest_of_character,
        end,
        *vocabulary.byte_ids(b" b"),
        end,
    ]
    pieces, rest = stream(vocabulary.decode, ids)
    assert "".join(pieces) + rest == "a\u65e5 b"
    assert all("<" not in piece for piece in pieces)


@SENTENCE_PIECE
def test_ordinary_words_are_not_held_back(vocabulary: SentencePiece) -> None:
    pieces, rest = stream(vocabulary.decode, vocabulary.word_ids("\u2581Hello", "\u2581world", ".", "\u2581two"))
    assert pieces == ["Hello", " world", ".", " two"]
    assert rest == ""


@SENTENCE_PIECE
def test_a_bad_byte_unmakes_its_whole_run_as_decoding_at_once_does(vocabulary: SentencePiece) -> None:
    ids = [
        *vocabulary.word_ids("a"),
        *vocabulary.byte_ids("\u672c\n".encode() + b"\xff"),
        *vocabulary.word_ids("lo"),
    ]
    pieces, rest = stream(vocabulary.decode, ids)
    assert "".join(pieces) + rest == vocabulary.decode(ids) == "a" + REPLACEMENT * 5 + "lo"


def test_an_unfinished_character_at_the_end_comes_with_the_flush() -> None:
    pieces, rest = stream(BYTE_LEVEL.decode, BYTE_LEVEL.byte_ids(b"ok \xf0\x9f"))
    assert "".join(pieces) == "ok "
    assert rest == REPLACEMENT


@SENTENCE_PIECE
def test_a_byte_run_without_end_flows_and_what_follows_it_keeps_its_space(vocabulary: SentencePiece) -> None:
    ids = [*vocabulary.byte_ids("\u672c".encode() * 400), *vocabulary.word_ids("\u2581Hello")]
    pieces, rest = stream(vocabulary.decode, ids)
    assert "".join(pieces) + rest == "\u672c" * 400 + " Hello"
    longest, silent = 0, 0
    for piece in pieces:
        silent = 0 if piece else silent + 1
        longest = max(longest, silent)
    assert longest <= MOST_HELD_TOKENS + KEPT_TOKENS


@pytest.mark.parametrize(
    "data",
    [b"plain text. ", "\u65e5".encode(), b"\xff", b"\xf0\x9f", b"\xe6", b"a\xff", b"    ", b"\xef\xbf\xbd"],
    ids=repr,
)
@ALL
def test_b03_the_work_per_token_is_flat_over_thousands_of_tokens(vocabulary: Vocabulary, data: bytes) -> None:
    ids = (vocabulary.byte_ids(data) * 4000)[:4000]
    detokenizer = Detokenizer(vocabulary.decode)
    work = []
    for start in range(0, 4000, 500):
        before = vocabulary.decoded_tokens
        for token_id in ids[start : start + 500]:
            detokenizer.push(token_id)
        work.append(vocabulary.decoded_tokens - before)
    assert max(work) <= 500 * 4 * (MOST_HELD_TOKENS + 2 * KEPT_TOKENS)
    assert work[-1] <= 1.3 * max(work[0], work[1])


@SENTENCE_PIECE
def test_thousands_of_spaces_and_special_tokens_do_not_pile_up(vocabulary: SentencePiece) -> None:
    detokenizer = Detokenizer(vocabulary.decode)
    before = vocabulary.decoded_tokens
    pieces = [detokenizer.push(i) for i in vocabulary.word_ids("\u2581", "\u2581\u2581", "</s>") * 1000]
    assert "".join(pieces) + detokenizer.flush() == vocabulary.decode(
        vocabulary.word_ids("\u2581", "\u2581\u2581", "</s>") * 1000
    )
    assert vocabulary.decoded_tokens - before < 3000 * 6 * MOST_HELD_TOKENS


def test_a_lone_byte_is_found_in_both_kinds_of_vocabulary() -> None:
    for vocabulary in (BYTE_LEVEL, MERGED, METASPACE, LLAMA):
        found = find_lone_byte(vocabulary.decode)
        assert found is not None
        assert vocabulary.decode([found]) == REPLACEMENT
    assert find_lone_byte(METASPACE.decode) == METASPACE.ids["<0x80>"]


def test_a_vocabulary_without_bytes_needs_none() -> None:
    words = ["Hello", " world", REPLACEMENT, "!"]
    pieces, rest = stream(lambda ids: "".join(words[i] for i in ids), [0, 1, 2, 2, 2, 2, 3, 2])
    assert "".join(pieces) + rest == "Hello world" + REPLACEMENT * 4 + "!" + REPLACEMENT
    assert find_lone_byte(lambda ids: "".join(words[i] for i in ids)) is None
