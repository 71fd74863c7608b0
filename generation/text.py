"""Token ids into text, one at a time: the pieces joined are always what decoding all ids at once gives.

What makes this hard, and what is relied on here:

- A byte-level tokenizer cuts characters into bytes. An unfinished character decodes to one U+FFFD at the end,
  which the next bytes replace. At most three bytes are unfinished, since a character has at most four.
- A SentencePiece tokenizer with byte fallback decodes a run of byte tokens as a whole: one bad byte turns the
  whole run into U+FFFD, finished characters too, and unfinished runs look the same. Text of such a run is
  only final when a token of another kind has ended it.
- A token's first space is lost when nothing stands before it: new tokens are decoded behind settled ones.
- U+FFFD may also be what the model means, or bytes that never become a character. Both must go on flowing.

Not known here: tokenizers, models, stop strings.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable

Decode = Callable[[list[int]], str]

REPLACEMENT = "\ufffd"
#: Unfinished bytes that a finished character can still come from. Tokens are at least one byte each.
UNFINISHED_BYTES = 3
#: Text is not held back over more tokens than this: a run of byte tokens without end must flow too, and the
#: cost per token stay flat. In longer runs a bad byte no longer unmakes the characters before it, as decoding
#: at once does.
MOST_HELD_TOKENS = 96
#: Tokens kept before unsettled ones when the cut is forced, more than UNFINISHED_BYTES.
KEPT_TOKENS = 8
#: Vocabularies have their byte tokens among the first ids, Mistral's at 771 to 1026.
SEARCHED_IDS = 2048
SEARCHED_AT_ONCE = 64


def find_lone_byte(decode: Decode) -> int | None:
    """The id of a token that is one byte from within a character, or None if there is no such token.

    Byte tokens come in the order of the bytes, so the first two neighbours that both decode to U+FFFD are
    such bytes (a single one could be the character U+FFFD itself). Costs up to 100 short decodes.
    """
    for start in range(0, SEARCHED_IDS, SEARCHED_AT_ONCE):
        # A decoder may not know all these ids; those of transformers leave unknown ones out.
        with contextlib.suppress(LookupError, ValueError, OverflowError, TypeError):
            if REPLACEMENT not in decode(list(range(start, start + SEARCHED_AT_ONCE + 1))):
                continue
        with contextlib.suppress(LookupError, ValueError, OverflowError, TypeError):
            for token_id in range(start, start + SEARCHED_AT_ONCE):
                if decode([token_id]) == decode([token_id + 1]) == REPLACEMENT:
                    return token_id
    return None


class Detokenizer:
    """The text of one answer as it grows. For one thread.

    `decode` gives the text of a list of ids with special tokens left out, and must not tidy spaces up
    (`clean_up_tokenization_spaces=False`), which would change text that went out long ago. `lone_byte` is
    what `find_lone_byte(decode)` gives, for callers that know it already.
    """

    def __init__(self, decode: Decode, *, lone_byte: int | None = None) -> None:
        self._decode = decode
        self._lone_byte = find_lone_byte(decode) if lone_byte is None else lone_byte
        self._context: list[int] = []  # settled: nothing that follows changes its text
        self._open: list[int] = []  # what came after it
        self._text = ""  # of context + open
        self._given = 0  # how many characters of it went out
        self._earlier: deque[str] = deque([""], maxlen=UNFINISHED_BYTES)  # what it was before the last pushes

    def push(self, token_id: int) -> str:
        """The text that is final now and was not before; often that of this token, sometimes none or more."""
        text = self._decode([*self._context, *self._open, token_id])
        if text == self._text and not self._decode([token_id, token_id]):
            return ""  # a special token; doubled, since a lone space is lost as well
        self._open.append(token_id)
        self._text = text
        broken = self._broken_off(text)
        final = [text, broken]
        if text.endswith(REPLACEMENT):
            # Either an unfinished character, then one of the earlier texts is what it will be appended to, or
            # U+FFFD for good, then they all begin alike.
            final.extend(self._earlier)
        end = max(len(_common_start(final)), self._given)
        held = len(self._open) >= MOST_HELD_TOKENS
        if not text.endswith(REPLACEMENT) and (held or broken == text + REPLACEMENT):
            piece = text[self._given :]
            self._settle(by_force=broken != text + REPLACEMENT)
            return piece
        piece = text[self._given : end]
        self._given = end
        self._earlier.append(text)
        if len(self._open) >= MOST_HELD_TOKENS + KEPT_TOKENS:
            self._forget(len(text) - end)
        return piece

    def flush(self) -> str:
        """What is still held back. The answer is over; nothing may be pushed after it."""
        piece = self._text[self._given :]
        self._given += len(piece)
        return piece

    def _broken_off(self, text: str) -> str:
        """What `text` becomes if a byte follows that fits to nothing: what is open breaks, the rest stays."""
        if self._lone_byte is None:
            return text + REPLACEMENT
        return self._decode([*self._context, *self._open, self._lone_byte])

    def _settle(self, *, by_force: bool) -> None:
        """All text went out, and its tokens become the context of the next.

        `by_force`, in a byte run: the old context stays if there is one, so that the run starts anew and what
        went out of it cannot break any more.
        """
        if not by_force or not self._context:
            self._context = self._open if self._decode(self._open).strip() else [*self._context, *self._open]
            self._context = self._context[-MOST_HELD_TOKENS:]
        self._open = []
        self._restart(held=0)

    def _forget(self, held: int) -> None:
        """U+FFFD has been coming for so long that nothing before the last tokens matters.

        `held` characters of it are held back still. A lone byte before them keeps a broken run broken.
        """
        lone = self._open[:1] if self._lone_byte is None else [self._lone_byte]
        self._open = [*lone, *self._open[-KEPT_TOKENS:]]
        self._restart(held)

    def _restart(self, held: int) -> None:
        self._text = self._decode([*self._context, *self._open])
        self._given = max(len(self._text) - held, 0)
        self._earlier = deque([self._text[: self._given]], maxlen=UNFINISHED_BYTES)


def _common_start(texts: list[str]) -> str:
    """What all of them begin with; of sorted texts, the first and the last differ most."""
    first, last = min(texts), max(texts)
    for index, character in enumerate(first):
        if index >= len(last) or character != last[index]:
            return first[:index]
    return first
