"""What a message spells stays text: only the chat template writes the tokens that steer a model.

Without this, a message that holds the text of a special token (`<|im_end|>`) ends its own turn and opens another one
in any role. Such text is marked before the template sees it, so that it can be told from what the template writes.
See docs/decisions/0016-control-tokens-in-messages.md.

Not known here: limits, requests, models.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from generation.errors import RequestRefused

#: Where the model's own words come back. Tokens of its output that are text to its users belong there as they are.
OWN_ROLE = "assistant"
#: The marks that `encode_marked_chat` of transformers reads: alone they part the text and are dropped, around a token
#: they make it text. Only the first way survives a template that cuts the text anywhere.
MARKS = ("\U000f0000", "\U000f0001")


class ControlTokens:
    """The tokens that only the template may write. Never changed after it is made; any thread may use it.

    These are all special tokens, wherever they are spelled; and other added tokens that the template writes itself
    (`<tool_response>`), but in what the model said: `<think>` comes back there as the token that it was.
    """

    def __init__(self, tokenizer: Any, template: str) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder.values()
        # A tokenizer may name them itself. Else blank ones are left out: templates hold them as ordinary text.
        named = getattr(tokenizer, "chat_control_tokens", None)
        special = [token.content for token in added if token.special]
        written = [
            token.content
            for token in added
            if not token.special
            and (token.content in named if named is not None else token.content in template and token.content.strip())
        ]
        self._special = _Spelling(special)
        self._all = _Spelling([*special, *written])

    def are_spelled_in(self, messages: list[dict[str, Any]], tools: Iterable[dict[str, Any]]) -> bool:
        """Whether any string of them, at whatever depth, holds one."""
        return any(self._of(message).is_in(message) for message in messages) or any(map(self._all.is_in, tools))

    def mark_messages(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Copies whose control tokens are marked, to be rendered and given to `encode`."""
        return [self._of(message).mark(message) for message in messages]

    def mark_tools(self, tools: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """As `mark_messages`."""
        return [self._all.mark(tool) for tool in tools]

    def encode(self, rendered: str) -> list[int]:
        """Ids of what the template made of marked messages: marked tokens as text, its own as tokens.

        Raises RequestRefused for a token of one character that the tokenizer makes even of plain text.
        """
        from transformers.utils.chat_template_utils import encode_marked_chat

        for mark in MARKS:
            # A template may write JSON in ASCII, and a mark that is not seen would protect nothing.
            rendered = rendered.replace(_json_escape(mark), mark)
        try:
            found = encode_marked_chat(self._tokenizer, rendered)
        except ValueError as error:
            raise RequestRefused(
                f"A message spells a control token, and this model's tokenizer cannot keep it plain text: {error}",
                param="messages",
            ) from None
        return [int(token_id) for token_id in found]

    def _of(self, message: dict[str, Any]) -> _Spelling:
        return self._special if message.get("role") == OWN_ROLE else self._all


class _Spelling:
    """Some tokens, and how they are found and marked in strings at whatever depth, the keys of objects included."""

    def __init__(self, tokens: list[str]) -> None:
        self._any = _any_of(tokens)
        self._longer = _any_of([token for token in tokens if len(token) > 1])
        self._single = _any_of([token for token in tokens if len(token) == 1])

    def is_in(self, value: object) -> bool:
        return any(self._any.search(text) for text in _strings(value))

    def mark(self, value: Any) -> Any:
        """A copy. Marks of the caller's own are dropped, since they could part the template's tokens."""
        if isinstance(value, str):
            return self._mark_text(value)
        if isinstance(value, dict):
            return {self.mark(key): self.mark(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.mark(item) for item in value]
        return value

    def _mark_text(self, text: str) -> str:
        start, end = MARKS
        text = text.replace(start, "").replace(end, "")
        while self._longer.search(text):  # again, since one token may hold another one
            text = self._longer.sub(lambda found: found[0][0] + end + found[0][1:], text)
        return self._single.sub(f"{start}\\g<0>{end}", text)


def _any_of(tokens: list[str]) -> re.Pattern[str]:
    """The longest that fits, so that a token is not taken for one that it begins with. Of none: matches nothing."""
    longest_first = sorted(filter(None, tokens), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from (*_strings(key), *_strings(item))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
