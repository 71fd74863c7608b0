"""Messages and tools of a chat's request as OpenAPI components, as `messages` and `tools` read them."""

from __future__ import annotations

from typing import Any

_OPTIONAL_STRING = {"type": ["string", "null"]}

_PARTS: list[dict[str, Any]] = [
    {
        "type": "object",
        "properties": {"type": {"const": kind}, kind: {"type": "string"}},
        "required": ["type", kind],
        "additionalProperties": True,
    }
    for kind in ("text", "refusal")
]

_CONTENT: list[dict[str, Any]] = [
    {"type": "string"},
    {"type": "array", "items": {"$ref": "#/components/schemas/TextPart"}, "minItems": 1},
]

_CALLED_FUNCTION: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "arguments": {
            "description": "A JSON object in a string.",
            "anyOf": [
                {"type": "string", "contentMediaType": "application/json"},
                {"type": "object", "additionalProperties": True},
                {"type": "null"},
            ],
        },
    },
    "required": ["name"],
    "additionalProperties": True,
}

_CALLS: dict[str, Any] = {
    "type": ["array", "null"],
    "items": {
        "type": "object",
        "properties": {"id": {}, "type": {}, "function": _CALLED_FUNCTION},
        "required": ["function"],
        "additionalProperties": True,
    },
}


def _message(roles: list[str], required: list[str], properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"role": {"enum": roles}, "content": {"anyOf": _CONTENT}, **properties},
        "required": ["role", *required],
        "additionalProperties": True,
    }


MESSAGES: dict[str, dict[str, Any]] = {
    "TextPart": {"description": "Other parts, such as images, are refused.", "anyOf": _PARTS},
    "UserMessage": _message(["system", "developer", "user"], ["content"], {}),
    "AssistantMessage": _message(
        ["assistant"],
        [],
        {
            "content": {"anyOf": [*_CONTENT, {"type": "null"}]},
            "tool_calls": _CALLS,
            "function_call": {
                "description": "The old form of `tool_calls`; looked at if there are none.",
                "anyOf": [_CALLED_FUNCTION, {"type": "null"}],
            },
        },
    ),
    "ToolMessage": _message(
        ["tool", "function"], ["content"], {"tool_call_id": _OPTIONAL_STRING, "name": _OPTIONAL_STRING}
    ),
    "Message": {
        "anyOf": [
            {"$ref": f"#/components/schemas/{name}"} for name in ("UserMessage", "AssistantMessage", "ToolMessage")
        ]
    },
}

TOOL: dict[str, Any] = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"},
                "description": _OPTIONAL_STRING,
                "parameters": {
                    "type": ["object", "null"],
                    "description": "JSON Schema; passed to the model, which is not made to keep to it.",
                    "additionalProperties": True,
                },
                "strict": {"type": ["boolean", "null"], "description": "Taken and ignored."},
            },
            "required": ["name"],
            "additionalProperties": True,
        },
    },
    "required": ["type", "function"],
    "additionalProperties": True,
}
