"""The bodies of requests as OpenAPI components: every field of the table in docs/openai.md, as `fields` reads it.

What depends on another field, on the model or on its context is said in words only: JSON Schema could say some of it,
and no reader would understand it.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings

from generation.openai.fields import INT64_MAX, INT64_MIN
from generation.openai.schema_messages import MESSAGES, TOOL
from generation.openai.shared_fields import (
    LEAST_REPETITION_PENALTY,
    LONGEST_STOP,
    MOST_BIASES,
    MOST_REPETITION_PENALTY,
    MOST_STOPS,
    MOST_TOP_K,
)
from generation.openai.tools import MOST_TOOLS
from generation.openai.unsupported import LONGEST_METADATA_KEY, LONGEST_METADATA_VALUE, MOST_METADATA

Schema = dict[str, Any]

IGNORED = "Taken and ignored."
REFUSED = "Not supported here: only what changes nothing is taken."


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _or_null(kind: str, description: str, **rest: Any) -> Schema:
    return {"type": [kind, "null"], "description": description, **rest}


def _number(description: str, least: float, most: float, **rest: Any) -> Schema:
    return _or_null("number", description, minimum=least, maximum=most, **rest)


def _whole(description: str, least: int = INT64_MIN, most: int = INT64_MAX, **rest: Any) -> Schema:
    return _or_null("integer", description, minimum=least, maximum=most, **rest)


def components() -> dict[str, Schema]:
    """The schemas that requests refer to. Reads the settings, and loads what reads requests."""
    return {**MESSAGES, "Tool": TOOL, "ChatRequest": _chat(), "CompletionRequest": _completion()}


def _shared() -> dict[str, Schema]:
    stop = {"type": "string", "minLength": 1, "maxLength": LONGEST_STOP}
    ignored_object = _or_null("object", IGNORED, additionalProperties=True)
    return {
        "model": {"type": "string", "minLength": 1, "description": "A name that /v1/models lists."},
        "temperature": _number("0 takes the most probable token.", 0, 2, default=1),
        "top_p": _or_null(
            "number", "Keeps the most probable tokens up to this sum.", exclusiveMinimum=0, maximum=1, default=1
        ),
        "top_k": _whole("Not OpenAI's. 0 and -1 keep all tokens.", -1, MOST_TOP_K, default=0),
        "min_p": _number("Not OpenAI's. Least probability, as a share of the best token's.", 0, 1, default=0),
        "seed": _whole("The same request with the same seed gives the same text."),
        "presence_penalty": _number("For tokens that the answer has.", -2, 2, default=0),
        "frequency_penalty": _number("Times how often the answer has them.", -2, 2, default=0),
        "repetition_penalty": _number(
            "Not OpenAI's. For tokens of prompt and answer.",
            LEAST_REPETITION_PENALTY,
            MOST_REPETITION_PENALTY,
            default=1,
        ),
        "logit_bias": _or_null(
            "object",
            "Token ids of the model's vocabulary, as strings, to what is added.",
            maxProperties=MOST_BIASES,
            propertyNames={"pattern": "^(0|[1-9][0-9]{0,9})$"},
            additionalProperties={"type": "number", "minimum": -100, "maximum": 100},
        ),
        "stop": {
            "description": "The text ends before the first of these strings that comes.",
            "anyOf": [stop, {"type": "array", "items": stop, "maxItems": MOST_STOPS}, {"type": "null"}],
        },
        "n": _whole("Answers to each prompt.", 1, settings.MESHNET_MAX_CHOICES, default=1),
        "max_tokens": _whole("Prompt and answer must fit the model's context.", 1),
        "stream": _or_null("boolean", "Answer with server-sent events.", default=False),
        "stream_options": _or_null(
            "object",
            "Only with `stream`.",
            properties={"include_usage": _or_null("boolean", "One more event, with `usage`.", default=False)},
            additionalProperties=True,
        ),
        "metadata": _or_null(
            "object",
            IGNORED,
            maxProperties=MOST_METADATA,
            propertyNames={"maxLength": LONGEST_METADATA_KEY},
            additionalProperties={"type": "string", "maxLength": LONGEST_METADATA_VALUE},
        ),
        "store": _or_null("boolean", IGNORED),
        "prompt_cache_options": ignored_object,
        **{name: _or_null("string", IGNORED) for name in _IGNORED_STRINGS},
    }


_IGNORED_STRINGS = ("user", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")


def _chat() -> Schema:
    from generation.openai.requests import MOST_TOP_LOGPROBS  # loads torch

    nothing = {"type": "null", "description": REFUSED}
    properties = {
        "messages": {"type": "array", "items": ref("Message"), "minItems": 1},
        **_shared(),
        "max_completion_tokens": _whole("Wins over `max_tokens`.", 1),
        "logprobs": _or_null("boolean", "Log probabilities of the answer's tokens.", default=False),
        "top_logprobs": _whole("So many alternatives to each token; only with `logprobs`.", 0, MOST_TOP_LOGPROBS),
        "tools": {
            "description": "Functions that the model may call, if its chat template knows a form of calls.",
            "anyOf": [{"type": "array", "items": ref("Tool"), "maxItems": MOST_TOOLS}, {"type": "null"}],
        },
        "tool_choice": {"enum": ["none", "auto", None], "description": "A call cannot be forced."},
        "parallel_tool_calls": _or_null("boolean", IGNORED),
        "functions": _or_null("array", REFUSED, maxItems=0),
        "function_call": {"enum": ["none", "auto", None], "description": REFUSED},
        "response_format": _or_null(
            "object",
            REFUSED,
            properties={"type": {"const": "text"}},
            required=["type"],
            additionalProperties=True,
        ),
        "modalities": {"enum": [["text"], None], "description": REFUSED},
        "audio": nothing,
        "web_search_options": nothing,
        "moderation": nothing,
        "prediction": _or_null("object", IGNORED, additionalProperties=True),
        "reasoning_effort": _or_null("string", IGNORED),
        "verbosity": _or_null("string", IGNORED),
    }
    return {"type": "object", "properties": properties, "required": ["model", "messages"], "additionalProperties": True}


def _completion() -> Schema:
    from generation.openai.completions import DEFAULT_MAX_TOKENS, MOST_LOGPROBS  # loads torch

    token_ids = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
    texts = {"type": "array", "items": {"type": "string"}, "minItems": 1}
    properties = {
        "prompt": {
            "description": "A text, several texts, token ids, or several lists of them; `n` answers to each.",
            "anyOf": [{"type": "string"}, texts, token_ids, {"type": "array", "items": token_ids, "minItems": 1}],
        },
        **_shared(),
        "max_tokens": _whole(f"By default at most {DEFAULT_MAX_TOKENS}, and what fits.", 1),
        "logprobs": _whole("Log probabilities, with so many alternatives to each token.", 0, MOST_LOGPROBS),
        "echo": _or_null("boolean", "The prompt stands before the answer; not with `logprobs`.", default=False),
        "suffix": _or_null("string", REFUSED, maxLength=0),
        "best_of": _whole("Must equal `n`.", 1),
    }
    return {"type": "object", "properties": properties, "required": ["model", "prompt"], "additionalProperties": True}
