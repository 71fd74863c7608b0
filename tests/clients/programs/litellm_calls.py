"""Run by the interpreter that has litellm: calls the mesh in its environment, and prints what came as JSON."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

# Before the import: it would ask for a list of prices on the net.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm

litellm.telemetry = False
CASE = json.loads(os.environ["MESH_CASE"])
BASE: dict[str, Any] = {
    "model": f"openai/{os.environ['MESH_MODEL']}",
    "api_base": os.environ["MESH_URL"],
    "api_key": os.environ["MESH_KEY"],
    "messages": CASE["messages"],
    "num_retries": 0,
}
SHORT = {"max_tokens": 6, "temperature": 0}


def refused(**options: Any) -> dict[str, Any]:
    try:
        litellm.completion(**{**BASE, **SHORT, **options})
    except Exception as error:
        return {"kind": type(error).__name__, "status": getattr(error, "status_code", None), "text": str(error)}
    return {"kind": "nothing"}


def used_up() -> dict[str, Any]:
    """The first answer of the limited key uses up its day, which is known when its row has ended."""
    for _ in range(50):
        if (said := refused(api_key=CASE["limited_key"]))["kind"] != "nothing":
            return said
    return {"kind": "nothing"}


whole = litellm.completion(**BASE, **SHORT)
chunks = list(litellm.completion(**BASE, **SHORT, stream=True, stream_options={"include_usage": True}))
call = litellm.completion(**BASE, **CASE["calling"], tools=[CASE["tool"]]).choices[0]
text = litellm.text_completion(
    model=f"text-completion-openai/{os.environ['MESH_MODEL']}",
    prompt="a",
    api_base=BASE["api_base"],
    api_key=BASE["api_key"],
    **SHORT,
)
json.dump(
    {
        "text": whole.choices[0].message.content,
        "finish_reason": whole.choices[0].finish_reason,
        "usage": whole.usage.model_dump(),
        "streamed": "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices),
        "streamed_usage": chunks[-1].usage.model_dump(),
        "call": [call.finish_reason, *[tool.function.model_dump() for tool in call.message.tool_calls]],
        "completion": text.choices[0].text,
        "wrong_key": refused(api_key="wrong"),
        "wrong_model": refused(model="openai/nobody"),
        "wrong_value": refused(temperature=3),
        "too_long": refused(max_tokens=10_000),
        "limited": used_up(),
    },
    sys.stdout,
)
