from __future__ import annotations

from typing import Any

import pytest

from generation.answer import ChatRequest
from generation.errors import RequestRefused
from generation.openai.requests import UNSUPPORTED, read_chat

from .conftest import CHAT, MODEL


def refused(**fields: Any) -> RequestRefused:
    with pytest.raises(RequestRefused) as caught:
        read_chat({**CHAT, **fields})
    assert caught.value.http_status == 400
    return caught.value


def test_the_least_request_takes_the_defaults_of_the_api() -> None:
    call = read_chat(CHAT)
    assert call.request == ChatRequest(model=MODEL, messages=CHAT["messages"])
    assert (call.stream, call.include_usage) == (False, False)


def test_every_field_reaches_the_request() -> None:
    call = read_chat({**CHAT, "max_tokens": 5, "temperature": 0, "top_p": 0.5, "top_k": 40, "seed": -7, "stream": True})
    assert call.request == ChatRequest(MODEL, CHAT["messages"], 5, 0.0, 0.5, 40, -7)
    assert call.stream


def test_null_means_absent_for_every_field() -> None:
    names = ["max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "seed", "stream", "user"]
    assert read_chat({**CHAT, **dict.fromkeys([*names, "stream_options", *UNSUPPORTED])}) == read_chat(CHAT)


def test_c03_unknown_and_harmless_keys_are_ignored() -> None:
    extra = {"user": "u1", "metadata": {}, "store": True, "service_tier": "auto", "made_up": [1], "logit_bias": None}
    messages = [{"id": 1, "role": "user", "content": CHAT["messages"][0]["content"], "weight": 0}]
    assert read_chat({**CHAT, **extra, "messages": messages}) == read_chat(CHAT)


@pytest.mark.parametrize("old, new, limit", [(3, None, 3), (None, 4, 4), (3, 4, 4), (4, 3, 3), (None, None, None)])
def test_c03_max_completion_tokens_wins_over_max_tokens(old: int | None, new: int | None, limit: int | None) -> None:
    call = read_chat({**CHAT, "max_tokens": old, "max_completion_tokens": new})
    assert call.request.max_tokens == limit


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("value", [0, -1, 1.5, 3.0, "3", True, [], {}, 2**63])
def test_a_limit_that_is_no_positive_whole_number_is_refused(name: str, value: Any) -> None:
    assert refused(**{name: value}).param == name


@pytest.mark.parametrize("value", [0, 1e-10, 1e-4, 0.7, 1, 2, 2.0])
def test_c07_temperatures_from_0_to_2_are_taken(value: float) -> None:
    assert read_chat({**CHAT, "temperature": value}).request.temperature == value


@pytest.mark.parametrize("value", [2.1, -1, -1e-9, "hot", "1", True, False, [], {}, float("inf"), 10**400])
def test_c07_other_temperatures_are_refused(value: Any) -> None:
    assert refused(temperature=value).param == "temperature"


@pytest.mark.parametrize("value", [1e-9, 0.5, 1, 1.0])
def test_c07_top_p_above_0_and_up_to_1_is_taken(value: float) -> None:
    assert read_chat({**CHAT, "top_p": value}).request.top_p == value


@pytest.mark.parametrize("value", [0, 0.0, -0.1, 1.01, True, "1", [1]])
def test_c07_other_top_p_is_refused(value: Any) -> None:
    assert refused(top_p=value).param == "top_p"


@pytest.mark.parametrize("value, kept", [(0, 0), (-1, 0), (1, 1), (10**6, 10**6)])
def test_top_k_of_0_or_minus_1_is_off(value: int, kept: int) -> None:
    assert read_chat({**CHAT, "top_k": value}).request.top_k == kept


@pytest.mark.parametrize("value", [-2, 1.0, True, "5", 2**31])
def test_other_top_k_is_refused(value: Any) -> None:
    assert refused(top_k=value).param == "top_k"


@pytest.mark.parametrize("value", [0, -(2**63), 2**63 - 1])
def test_a_seed_of_64_bits_is_taken(value: int) -> None:
    assert read_chat({**CHAT, "seed": value}).request.seed == value


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 1.0, "1", False, []])
def test_other_seeds_are_refused(value: Any) -> None:
    assert refused(seed=value).param == "seed"


@pytest.mark.parametrize("value", [1, 0, "true", "", [], {}])
def test_stream_must_be_true_or_false(value: Any) -> None:
    assert refused(stream=value).param == "stream"


@pytest.mark.parametrize(
    "options, asked", [({}, False), ({"include_usage": None}, False), ({"include_usage": True}, True)]
)
def test_c01_stream_options_ask_for_usage(options: dict[str, Any], asked: bool) -> None:
    assert read_chat({**CHAT, "stream": True, "stream_options": options}).include_usage is asked


@pytest.mark.parametrize("stream", [False, None])
def test_c01_stream_options_without_a_stream_are_refused(stream: bool | None) -> None:
    assert refused(stream=stream, stream_options={"include_usage": True}).param == "stream_options"


@pytest.mark.parametrize(
    "options, param",
    [([], "stream_options"), ("x", "stream_options"), ({"include_usage": 1}, "stream_options.include_usage")],
)
def test_c01_stream_options_of_the_wrong_type_are_refused(options: Any, param: str) -> None:
    assert refused(stream=True, stream_options=options).param == param


@pytest.mark.parametrize("value", [None, "", 5, True, [], {}])
def test_a_request_must_name_a_model(value: Any) -> None:
    assert refused(model=value).param == "model"


NEUTRAL: dict[str, list[Any]] = {
    "n": [1],
    "logprobs": [False],
    "top_logprobs": [0],
    "tools": [[]],
    "tool_choice": ["none", "auto"],
    "functions": [[]],
    "function_call": ["none", "auto"],
    "presence_penalty": [0, 0.0],
    "frequency_penalty": [0, 0.0],
    "repetition_penalty": [1, 1.0],
    "logit_bias": [{}],
    "stop": [[]],
    "response_format": [{"type": "text"}],
    "min_p": [0, 0.0],
    "modalities": [["text"]],
    "audio": [],
    "web_search_options": [],
}
CHANGING: dict[str, list[Any]] = {
    "n": [2, 0, True, "1", 1.5],
    "logprobs": [True, 0, 5, "no"],
    "top_logprobs": [2, False, "0"],
    "tools": [[{"type": "function", "function": {"name": "f"}}], {}, "x"],
    "tool_choice": ["required", {"type": "function", "function": {"name": "f"}}],
    "functions": [[{"name": "f"}]],
    "function_call": [{"name": "f"}],
    "presence_penalty": [0.5, -1, False, "0"],
    "frequency_penalty": [0.5, -1, False, "0"],
    "repetition_penalty": [1.1, 0, True],
    "logit_bias": [{"5": 100}, [], "x"],
    "stop": ["b", ["\n"], [""], ["1", "2", "3", "4", "5"], 5],
    "response_format": [{"type": "json_object"}, {"type": "json_schema", "json_schema": {}}, {}, "text"],
    "min_p": [0.1, False],
    "modalities": [["text", "audio"], []],
    "audio": [{"voice": "alloy", "format": "wav"}],
    "web_search_options": [{}],
}


def pairs(table: dict[str, list[Any]]) -> list[Any]:
    return [
        pytest.param(name, value, id=f"{name}={value!r}"[:40]) for name, values in table.items() for value in values
    ]


def test_the_tables_of_this_test_cover_every_unsupported_field() -> None:
    assert set(NEUTRAL) == set(CHANGING) == set(UNSUPPORTED)


@pytest.mark.parametrize("name, value", pairs(NEUTRAL))
def test_c03_values_that_change_nothing_pass(name: str, value: Any) -> None:
    assert read_chat({**CHAT, name: value}) == read_chat(CHAT)


@pytest.mark.parametrize("name, value", pairs(CHANGING))
def test_c03_what_is_not_supported_yet_is_refused_by_name(name: str, value: Any) -> None:
    error = refused(**{name: value})
    assert (error.param, error.code) == (name, "unsupported_parameter")
    assert name in error.detail
