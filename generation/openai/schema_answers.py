"""Answers as OpenAPI components. They have these keys and no others, so that a new one is written down."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

_STRING: Schema = {"type": "string"}
_STRING_OR_NULL: Schema = {"type": ["string", "null"]}
_WHOLE: Schema = {"type": "integer", "minimum": 0}
_LOGPROB: Schema = {"type": "number", "maximum": 0}
_NULL: Schema = {"type": "null"}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, _NULL]}


def _object(properties: dict[str, Schema], *, optional: tuple[str, ...] = (), **rest: Any) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
        **rest,
    }


def _counts(*names: str) -> Schema:
    return _object(dict.fromkeys(names, _WHOLE))


def _envelope(kind: str, choice: str, usage: Schema, **rest: Any) -> Schema:
    return _object(
        {
            "id": _STRING,
            "object": {"const": kind},
            "created": {**_WHOLE, "description": "Seconds since 1970."},
            "model": _STRING,
            "system_fingerprint": _STRING,
            "choices": _list(_ref(choice)),
            "usage": usage,
        },
        **rest,
    )


def _reason(*reasons: str) -> Schema:
    return {"enum": list(reasons)}


_ENTRY = {"token": _STRING, "logprob": _LOGPROB, "bytes": _or_null(_list({**_WHOLE, "maximum": 255}))}
_CALL = {
    "id": _STRING,
    "type": {"const": "function"},
    "function": _object({"name": _STRING, "arguments": {**_STRING, "description": "A JSON object in a string."}}),
}
_CHAT_REASONS, _TEXT_REASONS = ("stop", "length", "tool_calls"), ("stop", "length")
_USAGE_OF_CHUNK = {
    **_or_null(_ref("Usage")),
    "description": "Only with `include_usage`: null but in the last event, which has no choices.",
}


def _text_choice(reason: Schema) -> Schema:
    return _object(
        {
            "text": _STRING,
            "index": _WHOLE,
            "logprobs": _or_null(_ref("CompletionLogprobs")),
            "finish_reason": reason,
        }
    )


ANSWERS: dict[str, Schema] = {
    "Usage": _object(
        {
            "prompt_tokens": _WHOLE,
            "completion_tokens": _WHOLE,
            "total_tokens": _WHOLE,
            "prompt_tokens_details": _counts("cached_tokens", "audio_tokens"),
            "completion_tokens_details": _counts(
                "reasoning_tokens", "audio_tokens", "accepted_prediction_tokens", "rejected_prediction_tokens"
            ),
        }
    ),
    "ChatLogprobs": _object(
        {"content": _list(_object({**_ENTRY, "top_logprobs": _list(_object(_ENTRY))})), "refusal": _NULL}
    ),
    "ChatCompletion": _envelope("chat.completion", "ChatChoice", _ref("Usage")),
    "ChatChoice": _object(
        {
            "index": _WHOLE,
            "message": _object(
                {
                    "role": {"const": "assistant"},
                    "content": _STRING_OR_NULL,
                    "refusal": _NULL,
                    "tool_calls": {**_list(_object(_CALL)), "minItems": 1},
                },
                optional=("tool_calls",),
            ),
            "logprobs": _or_null(_ref("ChatLogprobs")),
            "finish_reason": _reason(*_CHAT_REASONS),
        }
    ),
    "ChatCompletionChunk": _envelope(
        "chat.completion.chunk",
        "ChatChunkChoice",
        _USAGE_OF_CHUNK,
        optional=("usage",),
        description="One event of a stream.",
    ),
    "ChatChunkChoice": _object(
        {
            "index": _WHOLE,
            "delta": _object(
                {
                    "role": {"const": "assistant"},
                    "content": _STRING,
                    "refusal": _NULL,
                    "tool_calls": {**_list(_object({"index": _WHOLE, **_CALL})), "minItems": 1},
                },
                optional=("role", "content", "refusal", "tool_calls"),
            ),
            "logprobs": _or_null(_ref("ChatLogprobs")),
            "finish_reason": _or_null(_reason(*_CHAT_REASONS)),
        }
    ),
    "CompletionLogprobs": _object(
        {
            "tokens": _list(_STRING),
            "token_logprobs": _list(_LOGPROB),
            "top_logprobs": _list({"type": "object", "additionalProperties": _LOGPROB}),
            "text_offset": _list(_WHOLE),
        }
    ),
    "Completion": _envelope("text_completion", "CompletionChoice", _ref("Usage")),
    "CompletionChoice": _text_choice(_reason(*_TEXT_REASONS)),
    "CompletionChunk": _envelope(
        "text_completion",
        "CompletionChunkChoice",
        _USAGE_OF_CHUNK,
        optional=("usage",),
        description="One event of a stream.",
    ),
    "CompletionChunkChoice": _text_choice(_or_null(_reason(*_TEXT_REASONS))),
    "Model": _object({"id": _STRING, "object": {"const": "model"}, "created": _WHOLE, "owned_by": _STRING}),
    "ModelList": _object({"object": {"const": "list"}, "data": _list(_ref("Model"))}),
}
