"""The body of `POST /v1/completions`, OpenAI's older API: plain text that is continued, without roles and templates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from generation.answer import CompletionRequest
from generation.openai import fields
from generation.openai.shared_fields import Served, read_n, read_stream, read_text_fields
from generation.openai.unsupported import check_completion

if TYPE_CHECKING:
    from generation.prompt import Prompter

MOST_LOGPROBS = 5
#: OpenAI's own default, as far as it fits. Clients that want more say so.
DEFAULT_MAX_TOKENS = 16

Prompt = str | tuple[int, ...]


@dataclass(frozen=True)
class CompletionCall:
    """What to continue, each prompt `n` times, and how the answer is to be sent. One request per prompt."""

    requests: tuple[CompletionRequest, ...]
    n: int = 1
    echo: bool = False
    stream: bool = False
    include_usage: bool = False
    limit_field: str = "max_tokens"


def read_completion(body: Mapping[str, Any], served: Served) -> CompletionCall:
    """Raises RequestRefused that names the first field at fault."""
    text_fields = read_text_fields(body, served)
    max_tokens = fields.integer(body, "max_tokens", least=1)
    logprobs = fields.integer(body, "logprobs", least=0, most=MOST_LOGPROBS)
    stream, include_usage = read_stream(body)
    n = read_n(body, served)
    check_completion(body, n)
    echo = fields.boolean(body, "echo")
    if echo and logprobs is not None:
        raise fields.unsupported("echo", "with 'logprobs' is not supported: there are none of the prompt's tokens")
    prompts = _read_prompts(body.get("prompt"), served.vocab_size)
    if len(prompts) * n > served.most_choices:
        raise fields.refuse(
            f"{len(prompts)} prompts with n={n} are {len(prompts) * n} answers; this server gives at most "
            f"{served.most_choices} to one request.",
            "prompt",
        )
    request = CompletionRequest(**text_fields, max_tokens=max_tokens, logprobs=logprobs, prompt=())
    requests = tuple(replace(request, prompt=prompt) for prompt in prompts)
    return CompletionCall(requests, n, echo, stream, include_usage)


def tokenized(request: CompletionRequest, prompter: Prompter) -> CompletionRequest:
    """With its prompt as ids and its limit of tokens set, so that every prompt is checked before one is begun.

    Raises RequestRefused that names `prompt`, or ContextLengthExceeded.
    """
    prompt = request.prompt
    ids = tuple(prompter.text_ids(prompt)) if isinstance(prompt, str) else prompt
    if not ids:
        raise fields.refuse("'prompt' must give one token or more.", "prompt")
    budget = prompter.budget(len(ids), request.max_tokens, param="prompt")
    return replace(
        request, prompt=ids, max_tokens=min(budget, DEFAULT_MAX_TOKENS) if request.max_tokens is None else budget
    )


def echoed(call: CompletionCall, prompter: Prompter) -> list[str]:
    """The text that stands before each choice's own; nothing without `echo`."""
    if not call.echo:
        return []
    prompts = [request.prompt for request in call.requests for _ in range(call.n)]
    return [prompt if isinstance(prompt, str) else prompter.decode(list(prompt)) for prompt in prompts]


def _read_prompts(value: object, vocab_size: int) -> list[Prompt]:
    if value is None:
        raise fields.missing("prompt")
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise _wrong_prompt()
    if not value:
        raise fields.refuse("'prompt' must not be an empty list.", "prompt")
    if all(isinstance(item, str) for item in value):
        return list(value)
    if all(isinstance(item, list) for item in value):
        return [_read_ids(item, vocab_size) for item in value]
    return [_read_ids(value, vocab_size)]


def _read_ids(value: list[Any], vocab_size: int) -> tuple[int, ...]:
    if not all(map(fields.is_whole, value)):
        raise _wrong_prompt()
    for token_id in value:
        if not 0 <= token_id < vocab_size:
            raise fields.refuse(f"'prompt' names token {token_id}; this model's ids end at {vocab_size - 1}.", "prompt")
    return tuple(value)


def _wrong_prompt() -> Exception:
    return fields.wrong_type("prompt", "a string, a list of strings, a list of token ids, or a list of such lists")
