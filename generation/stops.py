"""Stop strings: the text of an answer up to the first of them, as it grows.

The pieces that come are cut anywhere, so a stop string may begin in one and end in another. Text that may still be
the beginning of one is held back; it is given as soon as what follows shows that it is not, or with the flush.

Which match counts does not depend on how the text is cut into pieces: the one that ends first, since nothing is
generated after it, and of those that end at the same character the one that begins first, which is the longest.

Not known here: tokens, models, how an answer is sent.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopScanner:
    """Finds the first stop string in a text that comes in pieces. For one thread.

    The cost of a push is the length of its text times the number of stop strings, however long those are and
    however much text came before; without any it is nothing. Empty stop strings are left out.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [_Stop(text) for text in dict.fromkeys(stops) if text]
        self._held = ""
        self._hit = False

    @property
    def hit(self) -> bool:
        """Whether a stop string was found. No more text is given then, whatever is pushed."""
        return self._hit

    def push(self, text: str) -> str:
        """The text that is final now and was not before. It never holds any part of the match."""
        if self._hit:
            return ""
        if not self._stops:
            return text
        before = len(self._held)
        known = self._held + text
        for index, character in enumerate(text):
            # Every one of them must see the character, so that each keeps its own place.
            longest = max(stop.length if stop.follow(character) else 0 for stop in self._stops)
            if longest:
                self._hit, self._held = True, ""
                return known[: before + index + 1 - longest]
        held = max(stop.matched for stop in self._stops)
        end = len(known) - held
        self._held = known[end:]
        return known[:end]

    def flush(self) -> str:
        """What is still held back: the text is over, so no stop string can come of it."""
        text, self._held = self._held, ""
        return text


class _Stop:
    """One stop string and how much of it the text so far ends with (Knuth, Morris and Pratt's search)."""

    __slots__ = ("_borders", "_text", "length", "matched")

    def __init__(self, text: str) -> None:
        self._text = text
        self.length = len(text)
        self.matched = 0
        #: Of each beginning of the text, the length of its longest proper beginning that is its end as well.
        self._borders = [0] * len(text)
        border = 0
        for index in range(1, len(text)):
            while border and text[index] != text[border]:
                border = self._borders[border - 1]
            if text[index] == text[border]:
                border += 1
            self._borders[index] = border

    def follow(self, character: str) -> bool:
        """Takes the text's next character; True if the stop string ends with it."""
        while self.matched and self._text[self.matched] != character:
            self.matched = self._borders[self.matched - 1]
        if self._text[self.matched] == character:
            self.matched += 1
        return self.matched == self.length
