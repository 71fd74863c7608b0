"""The messages of a chat, checked and put into the form that chat templates read."""

from __future__ import annotations

import json
from typing import Any

from generation.openai.fields import missing, refuse, wrong_type

#: What each role is called in templates, which know nothing of `developer`.
ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


def read_messages(value: object) -> list[dict[str, Any]]:
    """Raises RequestRefused that names the message and the part of it at fault."""
    if value is None:
        raise missing("messages")
    if not isinstance(value, list):
        raise wrong_type("messages", "a list of messages")
    if not value:
        raise refuse("'messages' must hold one message or more.", "messages")
    return [_read_message(message, f"messages[{index}]") for index, message in enumerate(value)]


def _read_message(message: object, param: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise wrong_type(param, "an object with 'role' and 'content'")
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise refuse(f"'{param}.role' must be one of {', '.join(ROLES)}.", f"{param}.role")
    content = message.get("content")
    if content is None and role != "assistant":
        raise missing(f"{param}.content")
    read: dict[str, Any] = {"role": ROLES[role], "content": _read_content(content, f"{param}.content")}
    if role == "assistant":
        calls = _read_calls_of(message, param)
        if calls:
            read["tool_calls"] = calls
    if role in ("tool", "function"):
        for name in ("tool_call_id", "name"):
            if message.get(name) is not None:
                if not isinstance(message[name], str):
                    raise wrong_type(f"{param}.{name}", "a string")
                read[name] = message[name]
    return read


def _read_content(content: object, param: str) -> str:
    """A string, or parts whose texts are joined: a template would render a list's brackets and quotes."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise wrong_type(param, "a string or a list of text parts")
    if not content:
        raise refuse(f"'{param}' must hold one part or more.", param)
    return "".join(_read_part(part, f"{param}[{index}]") for index, part in enumerate(content))


def _read_part(part: object, param: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(kind, str):
        raise wrong_type(param, "an object with 'type' and 'text'")
    if kind not in ("text", "refusal"):
        raise refuse(f"'{param}' is of type {kind!r:.40}; this model only reads text.", f"{param}.type")
    if not isinstance(part.get(kind), str):
        raise wrong_type(f"{param}.{kind}", "a string")
    return str(part[kind])


def _read_calls_of(message: dict[str, Any], param: str) -> list[dict[str, Any]]:
    """The calls of an assistant's message, also in OpenAI's old form of a single one."""
    if message.get("tool_calls") is not None:
        return _read_tool_calls(message["tool_calls"], f"{param}.tool_calls")
    call = message.get("function_call")
    if call is None:
        return []
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        raise wrong_type(f"{param}.function_call", "an object with a 'name'")
    return _read_tool_calls([{"function": call}], f"{param}.function_call")


def _read_tool_calls(calls: object, param: str) -> list[dict[str, Any]]:
    """The calls with their arguments as objects: templates write them as JSON themselves."""
    if not isinstance(calls, list):
        raise wrong_type(param, "a list")
    read = []
    for index, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise wrong_type(f"{param}[{index}]", "an object with 'function', which has a 'name'")
        read.append(
            {
                "id": call["id"] if isinstance(call.get("id"), str) else "",
                "type": "function",
                "function": {
                    "name": function["name"],
                    "arguments": _read_arguments(function.get("arguments"), f"{param}[{index}].function"),
                },
            }
        )
    return read


def _read_arguments(arguments: object, param: str) -> dict[str, Any]:
    if not arguments:
        return {}
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise wrong_type(f"{param}.arguments", "a JSON object in a string")
    return value
