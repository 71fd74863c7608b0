"""The form in which models of the Qwen and Hermes kind write calls of tools, and whether a template has it.

    <tool_call>
    {"name": "get_weather", "arguments": {"city": "Paris"}}
    </tool_call>

Other families put other things between the same marks, so a template is asked instead of searched.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

CALL_START = "<tool_call>"
CALL_END = "</tool_call>"

Render = Callable[[list[dict[str, Any]], list[dict[str, Any]]], str]

_TOOL = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "A tool.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    },
}
_CALL = {"id": "call_0", "type": "function", "function": {"name": "probe_call", "arguments": {"a": 1}}}
_WRITTEN = re.compile(
    CALL_START + r'\s*\{\s*"name":\s*"probe_call",\s*"arguments":\s*\{\s*"a":\s*1\s*\}\s*\}\s*' + CALL_END
)


def is_known(render: Render) -> bool:
    """Whether the template writes the tools it is given, and a call of the assistant in the form above.

    `render` gives the text of messages and tools; whatever it raises is a no.
    """
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "tool_calls": [_CALL]},
        {"role": "tool", "content": "ok", "tool_call_id": "call_0", "name": "probe_call"},
    ]
    try:
        text = render(messages, [_TOOL])
    except Exception:  # templates raise what they like
        return False
    return "probe_tool" in text and bool(_WRITTEN.search(text))
