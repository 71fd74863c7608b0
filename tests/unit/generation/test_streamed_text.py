"""Detokeniser and stop strings one after the other, as an answer uses them: streamed equals unstreamed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from generation.stops import StopScanner
from generation.text import MOST_HELD_TOKENS, REPLACEMENT, Detokenizer, find_lone_byte
from tests.unit.generation.vocabularies import (
    BYTE_LEVEL,
    FAMILY,
    LLAMA,
    MERGED,
    METASPACE,
    RESERVED,
    Vocabulary,
    token_ids,
)

ALL = pytest.mark.parametrize(
    "vocabulary",
    [BYTE_LEVEL, MERGED, METASPACE, LLAMA, RESERVED],
    ids=["bytes", "merged", "metaspace", "llama", "reserved"],
)
LONE_BYTES = {id(v): find_lone_byte(v.decode) for v in (BYTE_LEVEL, MERGED, METASPACE, LLAMA, RESERVED)}


def stream(vocabulary: Vocabulary, ids: list[int], stops: list[str]) -> tuple[list[str], bool, int]:
    """The pieces sent, whether a stop string ended the text, and how many tokens were needed."""
    text = Detokenizer(vocabulary.decode, lone_byte=LONE_BYTES[id(vocabulary)])
    scanner = StopScanner(stops)
    pieces = []
    for number, token_id in enumerate(ids, start=1):
        pieces.append(scanner.push(text.push(token_id)))
        if scanner.hit:
            return pieces, True, number
    pieces += [scanner.push(text.flush()), scanner.flush()]
    return pieces, scanner.hit, len(ids)


def cut(text: str, stops: list[str]) -> tuple[str, bool]:
    """The whole text before the stop string that ends first, the longest of those that end together."""
    found = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    return (text[: min(found)[1]], True) if found else (text, False)


def stop_lists(text: str) -> st.SearchStrategy[list[str]]:
    """Parts of the text itself, parts that go on differently, and what it hardly holds."""
    parts = st.tuples(st.integers(0, max(len(text) - 1, 0)), st.integers(1, 6)).map(lambda at: text[at[0] : sum(at)])
    wrong = parts.map(lambda part: part + "\u00df")
    other = st.sampled_from(["a", " ", "\n\n", FAMILY, "\u672c", REPLACEMENT, REPLACEMENT * 2, "<|im_end|>"])
    return st.lists(st.one_of(parts, wrong, other).filter(bool), max_size=4)


@ALL
@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_b05_what_is_streamed_is_the_whole_text_up_to_the_first_stop_string(
    vocabulary: Vocabulary, data: st.DataObject
) -> None:
    ids = data.draw(token_ids(vocabulary))
    whole = vocabulary.decode(ids)
    stops = data.draw(stop_lists(whole))
    pieces, hit, _ = stream(vocabulary, ids, stops)
    assert ("".join(pieces), hit) == cut(whole, stops)


@ALL
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_b01_nothing_that_was_sent_is_changed_by_what_follows(vocabulary: Vocabulary, data: st.DataObject) -> None:
    ids, more = data.draw(token_ids(vocabulary)), data.draw(token_ids(vocabulary))
    ids, more = ids[: MOST_HELD_TOKENS // 2], more[: MOST_HELD_TOKENS // 2 - 1]
    stops = data.draw(stop_lists(vocabulary.decode([*ids, *more])))
    text = Detokenizer(vocabulary.decode, lone_byte=LONE_BYTES[id(vocabulary)])
    scanner = StopScanner(stops)
    sent = "".join(scanner.push(text.push(token_id)) for token_id in ids)
    assert cut(vocabulary.decode([*ids, *more]), stops)[0].startswith(sent)


@ALL
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_b05_no_token_is_taken_after_the_one_that_makes_a_stop_string_certain(
    vocabulary: Vocabulary, data: st.DataObject
) -> None:
    before, stop = data.draw(st.text("ab \u65e5", max_size=8)), data.draw(st.text("xyz\n", min_size=1, max_size=6))
    ids = vocabulary.byte_ids(f".{before}{stop}".encode())
    # Bytes of SentencePiece vocabularies are certain once a token of another kind follows; a last letter is one.
    ids = [*ids, vocabulary.ids["a"], *vocabulary.byte_ids(b"more")]
    pieces, hit, taken = stream(vocabulary, ids, [stop])
    assert hit
    assert "".join(pieces) == cut(vocabulary.decode(ids), [stop])[0]
    assert taken <= len(f".{before}{stop}".encode()) + 1


@pytest.mark.parametrize("data", [b"plain text. ", "\u65e5\u672c".encode(), b"\xff", b"ab", b"\xf0\x9f"], ids=repr)
@ALL
def test_b03_the_work_per_token_is_flat_over_four_thousand_tokens_with_stop_strings(
    vocabulary: Vocabulary, data: bytes
) -> None:
    ids = (vocabulary.byte_ids(data) * 4000)[:4000]
    text = Detokenizer(vocabulary.decode, lone_byte=LONE_BYTES[id(vocabulary)])
    # They almost match, over and over.
    stops = [data.decode(errors="replace") * 3 + "!", REPLACEMENT * 20 + "!", "abababac"]
    scanner = StopScanner(stops)
    work, held = [], 0
    for start in range(0, 4000, 500):
        before = vocabulary.decoded_tokens
        for token_id in ids[start : start + 500]:
            scanner.push(text.push(token_id))
            held = max(held, len(scanner._held))
        work.append(vocabulary.decoded_tokens - before)
    assert not scanner.hit
    assert work[-1] <= 1.3 * max(work[0], work[1])
    assert held < max(map(len, stops))
