"""Fields of OpenAI's API that have no effect here: some are ignored, some refused by name.

Ignored is what would not change the answer's text, or is only a wish. Refused is what a client would miss; a value
that changes nothing passes. The type is checked in both cases. Keys that are not OpenAI's are not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from generation.openai import fields

#: OpenAI's limits for `metadata`.
MOST_METADATA = 16
LONGEST_METADATA_KEY = 64
LONGEST_METADATA_VALUE = 512

_Check = Callable[[Mapping[str, Any], str], object]


def _metadata(body: Mapping[str, Any], name: str) -> None:
    pairs = fields.mapping(body, name) or {}
    if len(pairs) > MOST_METADATA:
        raise fields.refuse(f"'{name}' must hold at most {MOST_METADATA} pairs.", name)
    for key, value in pairs.items():
        if not isinstance(value, str):
            raise fields.wrong_type(name, "an object whose values are strings")
        if len(key) > LONGEST_METADATA_KEY or len(value) > LONGEST_METADATA_VALUE:
            raise fields.refuse(
                f"The keys of '{name}' have at most {LONGEST_METADATA_KEY} characters, its values at most "
                f"{LONGEST_METADATA_VALUE}.",
                name,
            )


#: Of chats and completions.
IGNORED: dict[str, _Check] = {
    "user": fields.text,
    "metadata": _metadata,
    "store": fields.boolean,
    "service_tier": fields.text,
    "safety_identifier": fields.text,
    "prompt_cache_key": fields.text,
    "prompt_cache_retention": fields.text,
    "prompt_cache_options": fields.mapping,
}

#: Of chats only.
IGNORED_IN_CHATS: dict[str, _Check] = {
    "prediction": fields.mapping,
    "reasoning_effort": fields.text,
    "verbosity": fields.text,
    "parallel_tool_calls": fields.boolean,
}


def check_ignored(body: Mapping[str, Any]) -> None:
    for name, check in IGNORED.items():
        check(body, name)


def check_chat(body: Mapping[str, Any]) -> None:
    """Raises RequestRefused that names the field."""
    check_ignored(body)
    for name, check in IGNORED_IN_CHATS.items():
        check(body, name)
    _check_format(fields.mapping(body, "response_format"))
    _check_modalities(body.get("modalities"))
    _check_functions(body)
    for name in ("audio", "web_search_options", "moderation"):
        if fields.mapping(body, name) is not None:
            raise fields.unsupported(name, "is not supported here")


def check_completion(body: Mapping[str, Any], n: int) -> None:
    """Raises RequestRefused that names the field."""
    check_ignored(body)
    if fields.text(body, "suffix"):
        raise fields.unsupported("suffix", "is not supported here: text is only continued")
    best_of = fields.integer(body, "best_of", least=1)
    if best_of is not None and best_of < n:
        raise fields.refuse("'best_of' must not be below 'n'.", "best_of")
    if best_of is not None and best_of > n:
        raise fields.unsupported("best_of", "is not supported above 'n'")


def _check_format(value: dict[str, Any] | None) -> None:
    if value is None:
        return
    kind = value.get("type")
    if not isinstance(kind, str):
        raise fields.wrong_type("response_format.type", "a string")
    if kind != "text":
        raise fields.unsupported("response_format", f"of type {kind!r:.40} is not supported here; only 'text' is")


def _check_modalities(value: object) -> None:
    if value is None:
        return
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise fields.wrong_type("modalities", "a list of strings")
    if value != ["text"]:
        raise fields.unsupported("modalities", 'must be ["text"] here')


def _check_functions(body: Mapping[str, Any]) -> None:
    """OpenAI's old form of tools."""
    functions = body.get("functions")
    if functions is not None and not isinstance(functions, list):
        raise fields.wrong_type("functions", "a list")
    if functions:
        raise fields.unsupported("functions", "is not supported here; use 'tools'")
    choice = body.get("function_call")
    if choice is not None and not isinstance(choice, str | dict):
        raise fields.wrong_type("function_call", "a string or an object")
    if choice not in (None, "none", "auto"):
        raise fields.unsupported("function_call", "is not supported here; use 'tools'")
