"""One token's text and bytes, as log probabilities report them.

A token alone has no exact text: it may be part of a character, and a decoder drops the space that a word begins with.
Its bytes are exact where the vocabulary says them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

#: The word-start mark of SentencePiece vocabularies.
SPACE_MARK = "\u2581"
BYTE_NAME = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenText:
    """Texts and bytes of a tokenizer's tokens. Never changed after it is made; any thread may use it."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        #: Tokens added to the vocabulary stand for their own text.
        self._added = {int(token_id): token.content for token_id, token in tokenizer.added_tokens_decoder.items()}
        backend = getattr(tokenizer, "backend_tokenizer", None)
        decoder = getattr(backend, "decoder", None)
        kinds = set() if decoder is None else set(_kinds(json.loads(decoder.__getstate__())))
        self._is_byte_level = "ByteLevel" in kinds
        self._has_byte_names = "ByteFallback" in kinds
        self._has_space_marks = bool(kinds & {"Metaspace", "ByteFallback"})

    def bytes(self, token_id: int) -> list[int] | None:
        """The bytes that the token adds to a text; of a special token those of its name. None when unknown."""
        if token_id in self._added:
            return list(self._added[token_id].encode())
        try:
            name = self._tokenizer.convert_ids_to_tokens(token_id)
        except (IndexError, KeyError, OverflowError):
            return None
        if not isinstance(name, str):
            return None  # models often have more rows than their tokenizer has tokens
        if self._is_byte_level:
            return _BYTES.read(name)
        byte = BYTE_NAME.fullmatch(name) if self._has_byte_names else None
        if byte:
            return [int(byte[1], 16)]
        return list(name.replace(SPACE_MARK, " ").encode()) if self._has_space_marks else None

    def text(self, token_id: int) -> str:
        """For people to read: U+FFFD stands for what is no whole character."""
        data = self.bytes(token_id)
        if data is None:
            return str(self._tokenizer.decode([token_id], clean_up_tokenization_spaces=False))
        return bytes(data).decode(errors="replace")


class _ByteLevelNames:
    """GPT-2's table between bytes and the visible characters that byte-level vocabularies write them with."""

    def __init__(self) -> None:
        visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        hidden = [byte for byte in range(256) if byte not in visible]
        self._bytes = {chr(byte): byte for byte in visible} | {chr(256 + n): byte for n, byte in enumerate(hidden)}

    def read(self, name: str) -> list[int] | None:
        data = [self._bytes.get(character) for character in name]
        return None if None in data else [byte for byte in data if byte is not None]


_BYTES = _ByteLevelNames()


def _kinds(decoder: dict[str, Any]) -> Iterator[str]:
    """A decoder's type and those of its parts."""
    yield str(decoder.get("type"))
    for part in decoder.get("decoders", ()):
        yield from _kinds(part)
