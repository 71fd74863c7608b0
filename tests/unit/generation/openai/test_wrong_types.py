"""Every field of the table with a value of every wrong type: 400 that names it, and nobody was asked for anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from .conftest import FakeHead, assert_is_error
from .test_field_table import ENDPOINTS, rows

VALUES: dict[str, Any] = {
    "string": "x",
    "whole number": 1,
    "number": 1.5,
    "boolean": True,
    "list": [True],
    "object": {"made_up": True},
}
NUMBER = {"whole number", "number"}

#: Which of these a field may be, as far as its type goes.
TAKES: dict[str, set[str]] = {
    "model": {"string"},
    "messages": {"list"},
    "prompt": {"string", "list"},
    "max_completion_tokens": {"whole number"},
    "max_tokens": {"whole number"},
    "temperature": NUMBER,
    "top_p": NUMBER,
    "top_k": {"whole number"},
    "min_p": NUMBER,
    "seed": {"whole number"},
    "presence_penalty": NUMBER,
    "frequency_penalty": NUMBER,
    "repetition_penalty": NUMBER,
    "logit_bias": {"object"},
    "stop": {"string"},
    "n": {"whole number"},
    "top_logprobs": {"whole number"},
    "stream": {"boolean"},
    "stream_options": {"object"},
    "echo": {"boolean"},
    "suffix": {"string"},
    "best_of": {"whole number"},
    "tools": {"list"},
    "tool_choice": {"string", "object"},
    "parallel_tool_calls": {"boolean"},
    "functions": {"list"},
    "function_call": {"string", "object"},
    "response_format": {"object"},
    "modalities": set(),
    "audio": {"object"},
    "web_search_options": {"object"},
    "moderation": {"object"},
    "prediction": {"object"},
    "reasoning_effort": {"string"},
    "verbosity": {"string"},
    "user": {"string"},
    "metadata": set(),
    "store": {"boolean"},
    "service_tier": {"string"},
    "safety_identifier": {"string"},
    "prompt_cache_key": {"string"},
    "prompt_cache_retention": {"string"},
    "prompt_cache_options": {"object"},
}
OF_ENDPOINT: dict[str, dict[str, set[str]]] = {
    "chat": {**TAKES, "logprobs": {"boolean"}},
    "completions": {**TAKES, "logprobs": {"whole number"}},
}
FIELDS = sorted({(endpoint, row[0]) for endpoint in ENDPOINTS for row in rows(endpoint) if row[2] != "—"})
CASES = [
    pytest.param(endpoint, field, value, id=f"{endpoint} {field}: {kind}")
    for endpoint, field in FIELDS
    for kind, value in VALUES.items()
    if kind not in OF_ENDPOINT[endpoint][field]
]


def test_every_field_is_tried() -> None:
    assert {field for _, field in FIELDS} == set(TAKES) | {"logprobs"}
    assert len(CASES) > 4 * len(FIELDS)


@pytest.mark.parametrize("endpoint, field, value", CASES)
def test_a_value_of_the_wrong_type_is_a_400_that_names_the_field(
    post: Callable[..., Any], head: FakeHead, endpoint: str, field: str, value: Any
) -> None:
    path, base, _ = ENDPOINTS[endpoint]
    response = post({**base, field: value}, path=path)
    param = response.json()["error"]["param"]
    assert param == field or param.startswith((f"{field}[", f"{field}."))
    error = assert_is_error(response, 400, "invalid_type", param)
    assert error["type"] == "invalid_request_error"
    assert head.asked == []
