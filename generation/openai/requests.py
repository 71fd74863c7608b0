"""The body of `POST /v1/chat/completions`: checked field by field, then a ChatRequest.

Unknown keys are ignored, null means absent. What this server cannot do yet is refused by name if asking for
it would change the answer; a value that changes nothing (`n: 1`, `tools: []`) passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from generation.answer import ChatRequest
from generation.openai import fields
from generation.openai.messages import read_messages

#: Beyond this `top_k` keeps the whole vocabulary of any model.
MOST_TOP_K = 2**31 - 1


@dataclass(frozen=True)
class ChatCall:
    """What to generate, and how the answer is to be sent."""

    request: ChatRequest
    stream: bool = False
    include_usage: bool = False


def _is(*values: object) -> Callable[[object], bool]:
    """Whether a value is one of these. 0.0 is 0, but false is not."""

    def matches(value: object) -> bool:
        return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in values)

    return matches


#: Fields that are not supported yet, each with the test for values that change nothing.
UNSUPPORTED: dict[str, Callable[[object], bool]] = {
    "n": _is(1),
    "logprobs": _is(False),
    "top_logprobs": _is(0),
    "tools": _is([]),
    "tool_choice": _is("none", "auto"),
    "functions": _is([]),
    "function_call": _is("none", "auto"),
    "presence_penalty": _is(0),
    "frequency_penalty": _is(0),
    "repetition_penalty": _is(1),
    "logit_bias": _is({}),
    "stop": _is([]),
    "response_format": lambda value: isinstance(value, dict) and value.get("type") == "text",
    "min_p": _is(0),
    "modalities": _is(["text"]),
    "audio": _is(),
    "web_search_options": _is(),
}


def read_chat(body: Mapping[str, Any]) -> ChatCall:
    """Raises RequestRefused that names the first field at fault."""
    model = fields.text(body, "model")
    if not model:
        raise fields.missing("model")
    messages = read_messages(body.get("messages"))
    max_tokens = fields.integer(body, "max_tokens", least=1)
    max_completion_tokens = fields.integer(body, "max_completion_tokens", least=1)
    top_k = fields.integer(body, "top_k", least=-1, most=MOST_TOP_K)
    request = ChatRequest(
        model=model,
        messages=messages,
        max_tokens=max_tokens if max_completion_tokens is None else max_completion_tokens,
        temperature=fields.number(body, "temperature", 1.0, least=0, most=2),
        top_p=fields.number(body, "top_p", 1.0, least=0, most=1, above=True),
        top_k=max(top_k or 0, 0),  # -1 is how vLLM's clients say "off"
        seed=fields.integer(body, "seed"),
    )
    stream = fields.boolean(body, "stream")
    include_usage = _read_stream_options(body.get("stream_options"), stream)
    for name, changes_nothing in UNSUPPORTED.items():
        value = body.get(name)
        if value is not None and not changes_nothing(value):
            message = f"'{name}' is not supported here with this value."
            raise fields.refuse(message, name, code="unsupported_parameter")
    return ChatCall(request, stream, include_usage)


def _read_stream_options(options: object, stream: bool) -> bool:
    """Whether a usage chunk is asked for."""
    if options is None:
        return False
    if not isinstance(options, dict):
        raise fields.wrong_type("stream_options", "an object")
    if not stream:
        raise fields.refuse("'stream_options' is only allowed when 'stream' is true.", "stream_options")
    return fields.boolean(options, "include_usage", param="stream_options.include_usage")
