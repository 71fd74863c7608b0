"""Run by the interpreter that has langchain-openai: calls the mesh in its environment, and prints what came as JSON."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import openai
from langchain_openai import ChatOpenAI

CASE = json.loads(os.environ["MESH_CASE"])


def model(**options: Any) -> ChatOpenAI:
    return ChatOpenAI(
        **{
            "base_url": os.environ["MESH_URL"],
            "api_key": os.environ["MESH_KEY"],
            "model": os.environ["MESH_MODEL"],
            "max_retries": 0,
            "max_tokens": 6,
            "temperature": 0,
            **options,
        }
    )


def refused(**options: Any) -> str:
    try:
        model(**options).invoke("hi")
    except openai.APIStatusError as error:
        # langchain's own classes are subclasses of these.
        kind = next(one for one in type(error).__mro__ if one.__module__.startswith("openai"))
        return f"{kind.__name__} {error.code}"
    return "nothing"


chat = model()
prompt = [("user", CASE["messages"][0]["content"])]
whole = chat.invoke(prompt)
later = asyncio.run(model().ainvoke(prompt))
chunks = list(model(stream_usage=True).stream(prompt))
called = model(**CASE["calling"]).bind_tools([CASE["tool"]]).invoke(prompt)
json.dump(
    {
        "text": whole.content,
        "usage": whole.usage_metadata,
        "finish_reason": whole.response_metadata["finish_reason"],
        "later": later.content,
        "streamed": "".join(chunk.content for chunk in chunks),
        "streamed_usage": [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata],
        "calls": [{"name": call["name"], "args": call["args"]} for call in called.tool_calls],
        "wrong_key": refused(api_key="wrong"),
        "wrong_model": refused(model="nobody"),
        "wrong_value": refused(temperature=3),
        "too_long": refused(max_tokens=10_000),
    },
    sys.stdout,
)
