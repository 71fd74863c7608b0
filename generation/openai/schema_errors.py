"""Errors as OpenAPI: which status comes with which codes, and the headers of answers."""

from __future__ import annotations

from typing import Any

from generation.openai.errors import INVALID, SERVER

Schema = dict[str, Any]

#: The table of errors in docs/openai.md, but for 405, which no documented method gives, and 499, which nobody reads.
CODES: dict[int, tuple[str, ...]] = {
    400: (
        "invalid_json",
        "invalid_type",
        "invalid_value",
        "missing_required_parameter",
        "unsupported_parameter",
        "context_length_exceeded",
        "bad_request",
    ),
    401: ("invalid_api_key",),
    403: ("permission_denied",),
    404: ("model_not_found", "unknown_url"),
    411: ("length_required",),
    413: ("request_too_large",),
    415: ("unsupported_media_type",),
    429: ("rate_limit_exceeded", "insufficient_quota"),
    500: ("internal", "compute_failed"),
    502: ("node_unreachable", "node_protocol_error", "node_refused"),
    503: (
        "no_route",
        "busy",
        "gave_up",
        "cache_lost",
        "cache_too_small",
        "draining",
        "cancelled",
        "not_ready",
        "limits_unavailable",
    ),
    504: ("node_timeout", "generation_timeout"),
}

_WORDS = {
    400: "The request cannot be served as it is.",
    401: "The key is missing, wrong, revoked or expired.",
    403: "Only with MESHNET_API_AUTH=off: the request did not come straight from this machine.",
    404: "No such model, or none that the key may use.",
    411: "The request does not say how long its body is.",
    413: "The body is too large.",
    415: "The body is not JSON, or compressed.",
    429: "A limit of the key is reached.",
    500: "The head failed.",
    502: "A node refused a step.",
    503: "It cannot be done now, or was ended early.",
    504: "It took longer than the server allows.",
}

OF_MODELS = (400, 401, 403, 500, 503)
OF_A_MODEL = (400, 401, 403, 404, 500, 503)
OF_ANSWERS = tuple(CODES)

_LIMITS: dict[str, Schema] = {
    f"x-ratelimit-{word}-{what}": {"description": f"Of a key with a limit of {what}.", "schema": schema}
    for what in ("requests", "tokens")
    for word, schema in (
        ("limit", {"type": "integer"}),
        ("remaining", {"type": "integer"}),
        ("reset", {"type": "string", "pattern": "^([0-9]+h)?([0-9]+m)?[0-9]+s$"}),
    )
}

HEADERS: dict[str, Schema] = {
    "x-request-id": {
        "description": "What the request sent under this name, if it is sane, or a new one.",
        "required": True,
        "schema": {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,128}$"},
    },
    "retry-after": {
        "description": "Nothing was done yet; try again in so many seconds.",
        "schema": {"type": "integer", "minimum": 1},
    },
    "x-should-retry": {"description": "Do not try again by yourself.", "schema": {"const": "false"}},
    "www-authenticate": {"required": True, "schema": {"const": "Bearer"}},
    **_LIMITS,
}


def components() -> dict[str, Schema]:
    """`Error`, that of streams, and for each status one that has its codes."""
    error = {
        "type": "object",
        "properties": {
            "message": {"type": "string"},
            "type": {"enum": [INVALID, "rate_limit_error", SERVER]},
            "param": {"type": ["string", "null"], "description": "The field at fault."},
            "code": {"type": "string"},
        },
        "required": ["message", "type", "param", "code"],
        "additionalProperties": False,
    }
    event = {
        "type": "object",
        "description": "In the middle of a stream, which it ends.",
        "properties": {"error": {"$ref": "#/components/schemas/Error"}},
        "required": ["error"],
        "additionalProperties": False,
    }
    return {"Error": error, "ErrorEvent": event} | {
        f"Error{status}": {
            "type": "object",
            "properties": {
                "error": {
                    "allOf": [
                        {"$ref": "#/components/schemas/Error"},
                        {"properties": {"code": {"enum": list(codes)}}},
                    ]
                }
            },
            "required": ["error"],
            "additionalProperties": False,
        }
        for status, codes in CODES.items()
    }


def description(status: int) -> str:
    return _WORDS[status]


def headers_of(status: int) -> list[str]:
    """The names of the headers that an answer of this status has or can have."""
    names = ["x-request-id"]
    if status == 401:
        names.append("www-authenticate")
    if status in (429, 503):
        names.append("retry-after")
    if status == 429 or status >= 500:
        names.append("x-should-retry")
    if status not in (401, 403):
        names += _LIMITS
    return names
