"""The tools that a chat offers to the model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from generation.openai import fields

#: OpenAI's own limits.
MOST_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def read_tools(body: Mapping[str, Any], *, takes_tools: bool) -> tuple[dict[str, Any], ...]:
    """What the chat template is given: nothing if the model is not to call any. Raises RequestRefused.

    A call cannot be forced: nothing here makes a model keep to a form, so `required` and named functions are refused
    instead of hoped for. For the same reason `strict` is not passed on.
    """
    tools = _read(body.get("tools"))
    choice = body.get("tool_choice")
    if choice is not None and not isinstance(choice, str | dict):
        raise fields.wrong_type("tool_choice", "a string or an object")
    if isinstance(choice, dict) or choice == "required":
        raise fields.unsupported("tool_choice", "must be 'auto' or 'none' here: a call cannot be forced")
    if choice not in (None, "none", "auto"):
        raise fields.refuse("'tool_choice' must be 'auto' or 'none'.", "tool_choice")
    if not tools or choice == "none":
        return ()
    if not takes_tools:
        raise fields.unsupported(
            "tools", "is not supported by this model: its chat template has no known form of calls"
        )
    return tools


def _read(value: object) -> tuple[dict[str, Any], ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise fields.wrong_type("tools", "a list")
    if len(value) > MOST_TOOLS:
        raise fields.refuse(f"'tools' must hold at most {MOST_TOOLS}.", "tools")
    return tuple(_read_tool(tool, f"tools[{index}]") for index, tool in enumerate(value))


def _read_tool(tool: object, param: str) -> dict[str, Any]:
    if not isinstance(tool, dict) or not isinstance(tool.get("type"), str):
        raise fields.wrong_type(param, "an object with 'type' and 'function'")
    if tool["type"] != "function":
        raise fields.unsupported(f"{param}.type", "must be 'function' here")
    function = tool.get("function")
    if not isinstance(function, dict):
        raise fields.wrong_type(f"{param}.function", "an object")
    name = function.get("name")
    if not isinstance(name, str):
        raise fields.wrong_type(f"{param}.function.name", "a string")
    if not _NAME.fullmatch(name):
        raise fields.refuse(
            f"'{param}.function.name' must have 1 to 64 letters, digits, '_' or '-'.", f"{param}.function.name"
        )
    read: dict[str, Any] = {"name": name}
    for key, kind, expected in (("description", str, "a string"), ("parameters", dict, "an object")):
        if function.get(key) is not None:
            if not isinstance(function[key], kind):
                raise fields.wrong_type(f"{param}.function.{key}", expected)
            read[key] = function[key]
    if function.get("strict") is not None and not isinstance(function["strict"], bool):
        raise fields.wrong_type(f"{param}.function.strict", "true or false")
    return {"type": "function", "function": read}
