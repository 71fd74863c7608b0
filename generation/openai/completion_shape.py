"""The answers of `/v1/completions`, which are `text_completion` whether streamed or not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from generation.answer import Finished, TextDelta
from generation.openai.logprobs import TextLogprobs
from generation.openai.responses import Shape

if TYPE_CHECKING:
    from generation.openai.choices import Choices
    from generation.prompt import Prompter


class CompletionShape(Shape):
    """`echoed` holds, for each choice, the prompt's text that stands before it; empty without `echo`."""

    whole_object = chunk_object = "text_completion"

    def __init__(
        self,
        choices: Choices,
        prompter: Prompter,
        *,
        logprobs: bool = False,
        echoed: Sequence[str] = (),
        include_usage: bool = False,
    ) -> None:
        super().__init__(choices, include_usage=include_usage)
        self._texts = list(echoed) or [""] * len(choices)
        self._logprobs = [TextLogprobs(prompter) for _ in range(len(choices))] if logprobs else None
        self._reasons: list[str | None] = [None] * len(choices)

    def opening(self) -> list[dict[str, Any]]:
        return [self._text_chunk(index, text, None) for index, text in enumerate(self._texts) if text]

    def take(self, index: int, event: TextDelta | Finished) -> list[dict[str, Any]]:
        text = event.text if isinstance(event, TextDelta) else ""
        begin = len(self._texts[index])
        self._texts[index] += text
        logprobs = None
        if self._logprobs is not None and event.tokens:
            logprobs = self._logprobs[index].add(event.tokens, begin=begin, end=begin + len(text))
        chunks = [self._text_chunk(index, text, logprobs)] if text or logprobs else []
        if isinstance(event, Finished):
            self._reasons[index] = event.reason
            chunks.append(self._text_chunk(index, "", None, event.reason))
        return chunks

    def choice(self, index: int) -> dict[str, Any]:
        logprobs = None if self._logprobs is None else self._logprobs[index].lists
        return _choice(index, self._texts[index], logprobs, self._reasons[index])

    def _text_chunk(
        self, index: int, text: str, logprobs: dict[str, Any] | None, reason: str | None = None
    ) -> dict[str, Any]:
        return self.chunk(_choice(index, text, logprobs, reason))


def _choice(index: int, text: str, logprobs: dict[str, Any] | None, reason: str | None) -> dict[str, Any]:
    return {"text": text, "index": index, "logprobs": logprobs, "finish_reason": reason}
