"""The answers of `/v1/chat/completions`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from generation.answer import Finished, TextDelta
from generation.openai.logprobs import chat_entries
from generation.openai.responses import Shape
from generation.openai.tool_calls import ToolCall, ToolCallParser

if TYPE_CHECKING:
    from generation.openai.choices import Choices
    from generation.prompt import Prompter


class ChatShape(Shape):
    """`logprobs`: whether they were asked for; `tools`: whether the model was offered any, so that it may call them."""

    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(
        self,
        choices: Choices,
        prompter: Prompter,
        *,
        logprobs: bool = False,
        tools: bool = False,
        include_usage: bool = False,
    ) -> None:
        super().__init__(choices, include_usage=include_usage)
        self._prompter = prompter
        self._logprobs = logprobs
        self._messages = [_Message(ToolCallParser() if tools else None) for _ in range(len(choices))]

    def opening(self) -> list[dict[str, Any]]:
        delta = {"role": "assistant", "content": "", "refusal": None}
        return [self._chunk(index, dict(delta)) for index in range(len(self._messages))]

    def take(self, index: int, event: TextDelta | Finished) -> list[dict[str, Any]]:
        message = self._messages[index]
        message.unsent += chat_entries(event.tokens, self._prompter)
        if isinstance(event, TextDelta):
            return [self._chunk(index, delta, message.sent()) for delta in message.add(event.text)]
        chunks = [self._chunk(index, delta, message.sent()) for delta in message.end(event)]
        if message.unsent:  # tokens without text of their own
            chunks.append(self._chunk(index, {"content": ""}, message.sent()))
        return [*chunks, self._chunk(index, {}, reason=message.reason)]

    def choice(self, index: int) -> dict[str, Any]:
        message = self._messages[index]
        return {
            "index": index,
            "message": message.whole(),
            "logprobs": _logprobs(message.entries) if self._logprobs else None,
            "finish_reason": message.reason,
        }

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        entries: list[dict[str, Any]] | None = None,
        reason: str | None = None,
    ) -> dict[str, Any]:
        logprobs = _logprobs(entries) if self._logprobs and entries else None
        return self.chunk({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason})


class _Message:
    """What came of one choice: its text, its calls of tools, and the log probabilities of its tokens."""

    def __init__(self, parser: ToolCallParser | None) -> None:
        self.reason: str | None = None
        self.entries: list[dict[str, Any]] = []  # that went out with a chunk
        self.unsent: list[dict[str, Any]] = []
        self._parser = parser
        self._pieces: list[str] = []
        self._calls: list[dict[str, Any]] = []

    def sent(self) -> list[dict[str, Any]]:
        """The entries for the next chunk: those of all tokens since the last one."""
        entries, self.unsent = self.unsent, []
        self.entries += entries
        return entries

    def add(self, text: str) -> list[dict[str, Any]]:
        """The deltas of a piece of text."""
        return self._take([text] if self._parser is None else self._parser.push(text))

    def end(self, event: Finished) -> list[dict[str, Any]]:
        """The deltas of what was held back until the end."""
        deltas = [] if self._parser is None else self._take(self._parser.flush())
        self.reason = "tool_calls" if self._calls and event.reason == "stop" else event.reason
        return deltas

    def whole(self) -> dict[str, Any]:
        text = "".join(self._pieces)
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if self._calls:
            message |= {"content": text or None, "tool_calls": self._calls}
        return message

    def _take(self, parts: list[str | ToolCall] | list[str]) -> list[dict[str, Any]]:
        deltas: list[dict[str, Any]] = []
        for part in parts:
            if isinstance(part, str):
                self._pieces.append(part)
                deltas.append({"content": part})
            else:
                function = {"name": part.name, "arguments": part.arguments}
                call = {"id": part.id, "type": "function", "function": function}
                deltas.append({"tool_calls": [{"index": len(self._calls), **call}]})
                self._calls.append(call)
        return deltas


def _logprobs(entries: list[dict[str, Any]]) -> dict[str, Any]:
    return {"content": entries, "refusal": None}
