"""The JSON that all answers share, as https://platform.openai.com/docs/api-reference gives it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from generation.answer import Finished, TextDelta
    from generation.openai.choices import Choices, Usage


class Shape:
    """Turns the events of a request's answers into chunks of a stream, and keeps what the whole answer needs.

    A subclass says what one choice looks like. For one thread; every event is taken once, in its order.
    """

    #: `object` of a whole answer and of a chunk.
    whole_object: str
    chunk_object: str

    def __init__(self, choices: Choices, *, include_usage: bool = False) -> None:
        self._choices = choices
        self.include_usage = include_usage

    def opening(self) -> list[dict[str, Any]]:
        """The chunks that go out before anything was generated."""
        raise NotImplementedError

    def take(self, index: int, event: TextDelta | Finished) -> list[dict[str, Any]]:
        """The chunks of one event; after Finished the last is the choice's only one with a finish_reason."""
        raise NotImplementedError

    def choice(self, index: int) -> dict[str, Any]:
        """One choice of a whole answer."""
        raise NotImplementedError

    def whole(self) -> dict[str, Any]:
        """The answer in one piece, once every choice has finished."""
        choices = [self.choice(index) for index in range(len(self._choices))]
        return self._envelope(self.whole_object, choices) | {"usage": usage(self._choices.usage())}

    def chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        """With `include_usage` each says that its usage is still to come."""
        return self._envelope(self.chunk_object, [choice]) | ({"usage": None} if self.include_usage else {})

    def usage_chunk(self) -> dict[str, Any]:
        return self._envelope(self.chunk_object, []) | {"usage": usage(self._choices.usage())}

    def _envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._choices.id,
            "object": kind,
            "created": self._choices.created,
            "model": self._choices.model,
            "system_fingerprint": self._choices.fingerprint,
            "choices": choices,
        }


def usage(used: Usage) -> dict[str, Any]:
    """`cached_tokens` is 0: nothing of one request is reused for another (docs/openai.md)."""
    return {
        "prompt_tokens": used.prompt_tokens,
        "completion_tokens": used.completion_tokens,
        "total_tokens": used.prompt_tokens + used.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def model(name: str, created: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": created, "owned_by": "meshnet"}


def model_list(names: Iterable[str], created: int) -> dict[str, Any]:
    return {"object": "list", "data": [model(name, created) for name in names]}
