"""The body of `POST /v1/chat/completions`: checked field by field, then a ChatRequest.

Unknown keys are ignored, null means absent; docs/openai.md lists every field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from generation.answer import ChatRequest
from generation.openai import fields
from generation.openai.messages import read_messages
from generation.openai.shared_fields import Served, read_n, read_stream, read_text_fields
from generation.openai.tools import read_tools
from generation.openai.unsupported import check_chat

MOST_TOP_LOGPROBS = 20


@dataclass(frozen=True)
class ChatCall:
    """What to generate, how often, and how the answer is to be sent."""

    request: ChatRequest
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    #: The field that the limit of tokens came from, to be named when it does not fit.
    limit_field: str = "max_tokens"


def read_chat(body: Mapping[str, Any], served: Served) -> ChatCall:
    """Raises RequestRefused that names the first field at fault."""
    text_fields = read_text_fields(body, served)
    max_tokens = fields.integer(body, "max_tokens", least=1)
    max_completion_tokens = fields.integer(body, "max_completion_tokens", least=1)
    stream, include_usage = read_stream(body)
    n = read_n(body, served)
    logprobs = _read_logprobs(body)
    check_chat(body)
    tools = read_tools(body, takes_tools=served.takes_tools)
    request = ChatRequest(
        **text_fields,
        messages=read_messages(body.get("messages")),
        tools=tools,
        max_tokens=max_tokens if max_completion_tokens is None else max_completion_tokens,
        logprobs=logprobs,
    )
    limit_field = "max_tokens" if max_completion_tokens is None else "max_completion_tokens"
    return ChatCall(request, n, stream, include_usage, limit_field)


def _read_logprobs(body: Mapping[str, Any]) -> int | None:
    """How many alternatives per token; None without logprobs."""
    wanted = fields.boolean(body, "logprobs")
    top = fields.integer(body, "top_logprobs", least=0, most=MOST_TOP_LOGPROBS)
    if top and not wanted:
        raise fields.refuse("'top_logprobs' is only allowed when 'logprobs' is true.", "top_logprobs")
    return top or 0 if wanted else None
