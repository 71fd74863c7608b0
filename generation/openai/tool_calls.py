"""Calls of tools, read out of an answer's text as it grows, in the form that `generation.tool_form` describes.

What looks like a call and is none stays text: every character goes out once, as text or as part of a call. Only blank
text before, between and after calls is left out, which would make an empty message of a call.

Not known here: tokens, responses, which tools there are.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from generation.tool_form import CALL_END, CALL_START


@dataclass(frozen=True)
class ToolCall:
    """A finished call; `arguments` is a JSON object in a string, as the API gives it."""

    id: str
    name: str
    arguments: str


def mint_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


class ToolCallParser:
    """Splits one answer's text into text and calls, in their order. For one thread.

    Text goes on as it comes, but for what may still be the beginning of a call. The cost of a push is that of its own
    text, however long the call grows.
    """

    def __init__(self, *, mint: Callable[[], str] = mint_call_id) -> None:
        self._mint = mint
        self._held = ""  # perhaps the beginning of the start mark
        self._body: _Body | None = None  # of the call under way
        self._blank = ""  # blank text that only counts if other text follows
        self._is_bare = True  # only blank text came since the beginning or the last call
        self._has_called = False

    def push(self, text: str) -> list[str | ToolCall]:
        """What is final now and was not before: pieces of text, never empty, and calls."""
        events: list[str | ToolCall] = []
        rest: str | None = text
        while rest:
            if self._body:
                rest = self._read_body(self._body, rest, events)
            else:
                rest = self._read_text(self._held + rest, events)
        return events

    def flush(self) -> list[str | ToolCall]:
        """What is still held back: the answer is over. A call that only lacks its end mark counts."""
        events: list[str | ToolCall] = []
        if self._body:
            self._end_body(self._body, events)
        self._give(self._held, events)
        if self._blank and not self._has_called:
            events.append(self._blank)
        self._held = self._blank = ""
        return events

    def _read_text(self, text: str, events: list[str | ToolCall]) -> str | None:
        """Reads up to the start of a call; gives what follows it, None when all is read."""
        before, mark, rest = text.partition(CALL_START)
        self._held = "" if mark else _beginning_at_end(text, CALL_START)
        self._give(before[: len(before) - len(self._held)], events)
        if not mark:
            return None
        self._body = _Body()
        return rest

    def _read_body(self, body: _Body, text: str, events: list[str | ToolCall]) -> str | None:
        rest = body.read(text)
        if rest is not None:
            self._end_body(body, events)
        return rest

    def _end_body(self, body: _Body, events: list[str | ToolCall]) -> None:
        self._body = None
        call = _read_call(body.json, self._mint)
        if call is None:
            self._give(CALL_START + body.json + body.mark, events)
            return
        events.append(call)
        self._blank = ""
        self._is_bare = self._has_called = True

    def _give(self, text: str, events: list[str | ToolCall]) -> None:
        if self._is_bare and not text.strip():
            self._blank += text
        elif text:
            events.append(self._blank + text)
            self._blank, self._is_bare = "", False


class _Body:
    """What follows a start mark, up to its end mark or to where it cannot be JSON any more."""

    def __init__(self) -> None:
        self._characters: list[str] = []
        self._is_begun = self._is_in_string = self._is_escaped = False
        #: The end mark, as far as it came.
        self.mark = ""

    @property
    def json(self) -> str:
        return "".join(self._characters)

    def read(self, text: str) -> str | None:
        """Takes text; gives what of it is behind the body, None while the body may go on."""
        for at, character in enumerate(text):
            if self.mark or (character == CALL_END[0] and not self._is_in_string):
                if character != CALL_END[len(self.mark)]:
                    # Broken. What looked like the end mark may be the beginning of the next start mark.
                    begun, self.mark = self.mark, ""
                    return begun + text[at:]
                self.mark += character
                if self.mark == CALL_END:
                    return text[at + 1 :]
            elif self._is_begun or character == "{" or character.isspace():
                self._take(character)
            else:
                return text[at:]
        return None

    def _take(self, character: str) -> None:
        self._characters.append(character)
        self._is_begun = self._is_begun or character == "{"
        if self._is_in_string:
            if self._is_escaped or character == "\\":
                self._is_escaped = not self._is_escaped
            elif character == '"':
                self._is_in_string = False
        elif character == '"':
            self._is_in_string = True


def _read_call(body: str, mint: Callable[[], str]) -> ToolCall | None:
    """None when it is no call: not JSON, without a name, or with arguments that are no object."""
    try:
        # Models write line ends into strings as they are.
        call = json.loads(body, strict=False, parse_constant=_refuse_constant)
        arguments = call.get("arguments") if isinstance(call, dict) else None
        if isinstance(arguments, str):
            arguments = json.loads(arguments, strict=False, parse_constant=_refuse_constant)
        if arguments is None:
            arguments = {}
        if not isinstance(call, dict) or not isinstance(arguments, dict):
            return None
        name = call.get("name")
        if not isinstance(name, str) or not name:
            return None
        return ToolCall(mint(), name, json.dumps(arguments, ensure_ascii=False))
    except (ValueError, RecursionError):
        return None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON.")


def _beginning_at_end(text: str, mark: str) -> str:
    """The longest end of the text that the mark begins with, but not all of the mark."""
    for length in range(min(len(text), len(mark) - 1), 0, -1):
        if mark.startswith(text[-length:]):
            return text[-length:]
    return ""
