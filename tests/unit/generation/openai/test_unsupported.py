"""Fields without effect here: ignored, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from .test_requests import read, refused


@pytest.mark.parametrize(
    "fields",
    [
        {"functions": []},
        {"function_call": "none"},
        {"function_call": "auto"},
        {"response_format": {"type": "text"}},
        {"modalities": ["text"]},
        {"metadata": {"k" * 64: "v" * 512}},
        {"metadata": {str(number): "" for number in range(16)}},
        {"parallel_tool_calls": False},
        {"prediction": {"type": "content", "content": "x"}},
    ],
    ids=lambda value: repr(value)[:40],
)
def test_c03_values_that_change_nothing_pass(fields: dict[str, Any]) -> None:
    assert read(**fields) == read()


@pytest.mark.parametrize(
    "fields",
    [
        {"functions": [{"name": "f"}]},
        {"function_call": {"name": "f"}},
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}},
        {"modalities": ["text", "audio"]},
        {"modalities": []},
        {"audio": {"voice": "alloy", "format": "wav"}},
        {"web_search_options": {}},
    ],
    ids=lambda value: repr(value)[:40],
)
def test_c03_what_is_not_supported_is_refused_by_name(fields: dict[str, Any]) -> None:
    (name,) = fields
    error = refused(**fields)
    assert (error.param, error.code) == (name, "unsupported_parameter")
    assert name in error.detail


@pytest.mark.parametrize(
    "value",
    [{"k" * 65: ""}, {"k": "v" * 513}, {str(number): "" for number in range(17)}, {"k": 5}, {"k": None}, [], "x"],
    ids=lambda value: repr(value)[:30],
)
def test_metadata_is_held_to_what_openai_says_of_it(value: Any) -> None:
    assert refused(metadata=value).param == "metadata"
