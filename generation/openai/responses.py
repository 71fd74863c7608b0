"""The exact shapes of answers, as https://platform.openai.com/docs/api-reference/chat gives them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from generation.answer import Answer, Finished


def completion(answer: Answer, text: str, finished: Finished) -> dict[str, Any]:
    """An answer in one piece."""
    return {
        "id": answer.id,
        "object": "chat.completion",
        "created": answer.created,
        "model": answer.model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text, "refusal": None},
                "logprobs": None,
                "finish_reason": finished.reason,
            }
        ],
        "usage": usage(finished),
    }


def chunk(answer: Answer, delta: dict[str, Any], finish_reason: str | None, *, include_usage: bool) -> dict[str, Any]:
    """One piece of a streamed answer. With `include_usage` each says that its usage is still to come."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return _chunk(answer, [choice]) | ({"usage": None} if include_usage else {})


def usage_chunk(answer: Answer, finished: Finished) -> dict[str, Any]:
    return _chunk(answer, []) | {"usage": usage(finished)}


def _chunk(answer: Answer, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": answer.id,
        "object": "chat.completion.chunk",
        "created": answer.created,
        "model": answer.model,
        "choices": choices,
    }


def usage(finished: Finished) -> dict[str, int]:
    return {
        "prompt_tokens": finished.prompt_tokens,
        "completion_tokens": finished.completion_tokens,
        "total_tokens": finished.prompt_tokens + finished.completion_tokens,
    }


def model(name: str, created: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": created, "owned_by": "meshnet"}


def model_list(names: Iterable[str], created: int) -> dict[str, Any]:
    return {"object": "list", "data": [model(name, created) for name in names]}
