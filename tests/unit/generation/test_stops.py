from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from generation import stops as stops_module
from generation.stops import StopScanner


def scan(stops: list[str], pieces: list[str]) -> tuple[list[str], str, bool]:
    """The pieces given, what the flush adds, and whether a stop string was found."""
    scanner = StopScanner(stops)
    given_pieces = [scanner.push(piece) for piece in pieces]
    return given_pieces, scanner.flush(), scanner.hit


def cut(text: str, stops: list[str]) -> tuple[str, bool]:
    """The definition: the text before the match that ends first, of those the one that begins first."""
    found = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop and stop in text]
    return (text[: min(found)[1]], True) if found else (text, False)


def pieces_of(text: str) -> st.SearchStrategy[list[str]]:
    """The text cut anywhere, empty pieces included, as tokens without text give them."""
    cuts = st.lists(st.integers(0, len(text)), max_size=8).map(sorted)
    return cuts.map(lambda at: [text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)])


@given(
    text=st.text(alphabet="ab\n", max_size=40),
    stops=st.lists(st.text(alphabet="ab\n", max_size=5), max_size=4),
    data=st.data(),
)
@example(text="aab", stops=["ab"], data=None)
def test_the_text_is_cut_where_searching_all_of_it_cuts_it(text: str, stops: list[str], data: st.DataObject) -> None:
    pieces = list(text) if data is None else data.draw(pieces_of(text))
    given_pieces, rest, hit = scan(stops, pieces)
    assert ("".join(given_pieces) + rest, hit) == cut(text, stops)


@given(text=st.text(alphabet="ab", max_size=30), stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=4))
def test_only_what_may_still_become_a_stop_is_held_back(text: str, stops: list[str]) -> None:
    scanner = StopScanner(stops)
    seen = given_text = ""
    for character in text:
        seen += character
        given_text += scanner.push(character)
        if scanner.hit:
            return
        held = seen[len(given_text) :]
        assert seen == given_text + held
        assert not held or any(stop.startswith(held) for stop in stops)
        # And not less: none of the text that went out may be the beginning of a stop string.
        assert all(not seen.endswith(stop[:n]) or n <= len(held) for stop in stops for n in range(len(stop)))


def test_b05_a_stop_string_over_token_borders_is_found_and_none_of_it_is_given() -> None:
    assert scan(["\nUser:"], ["ab", "c\n", "Us", "er", ": hi"]) == (["ab", "c", "", "", ""], "", True)


def test_b05_an_overlapping_beginning_is_found() -> None:
    assert scan(["ab"], ["a", "a", "b"]) == (["", "a", ""], "", True)
    assert scan(["aab"], ["a", "a", "a", "b"]) == (["", "", "a", ""], "", True)


def test_b05_held_back_text_is_given_once_it_is_no_stop_string() -> None:
    assert scan(["\nUser:"], ["abc\nUs", "eful"]) == (["abc", "\nUseful"], "", False)


def test_b05_held_back_text_comes_with_the_flush() -> None:
    assert scan(["\nUser:"], ["abc\nUser"]) == (["abc"], "\nUser", False)


def test_b05_the_stop_string_that_ends_first_wins_wherever_the_pieces_are_cut() -> None:
    for pieces in (["xabcd"], ["xab", "cd"], list("xabcd")):
        given_pieces, rest, hit = scan(["abcd", "bc"], pieces)
        assert ("".join(given_pieces) + rest, hit) == ("xa", True)


def test_b05_of_those_that_end_together_the_longest_wins() -> None:
    for stops in (["c", "abc", "bc"], ["abc", "c"]):
        assert scan(stops, ["xabc"]) == (["x"], "", True)


def test_nothing_is_given_after_a_match() -> None:
    scanner = StopScanner(["b"])
    assert scanner.push("abc") == "a"
    assert scanner.push("more") == scanner.flush() == ""
    assert scanner.hit


def test_without_stop_strings_text_passes_untouched_and_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stops_module._Stop, "follow", None)
    for stops in ([], [""]):
        scanner = StopScanner(stops)
        text = "anything"
        assert scanner.push(text) is text
        assert not scanner.hit


def test_the_work_per_character_is_flat_even_for_long_stop_strings_that_almost_match(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_at = 0

    class Counted(str):
        """A stop string that counts how often its characters are looked at."""

        def __getitem__(self, index: object) -> str:  # type: ignore[override]
            nonlocal looked_at
            looked_at += 1
            return super().__getitem__(index)  # type: ignore[index]

    scanner = StopScanner([Counted("a" * 500 + "b"), Counted("c" + "a" * 300 + "b")])
    work = []
    for _ in range(8):
        before = looked_at
        for _ in range(500):
            scanner.push("a")
        work.append(looked_at - before)
        assert len(scanner._held) <= 500
    # Two looks per character and stop string, one more for each step back; never a function of what is held.
    assert max(work) <= 2 * 3 * 500
