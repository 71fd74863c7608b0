"""The fields of a chat, one by one. docs/openai.md's table is compared with the code in test_field_table.py."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsBase, CompletionCreateParamsStreaming

from generation.answer import ChatRequest
from generation.errors import RequestRefused
from generation.openai.requests import ChatCall, read_chat
from generation.openai.shared_fields import Served

from .conftest import CHAT, MODEL, VOCAB

SERVED = Served(vocab_size=VOCAB, most_choices=8)


def read(**fields: Any) -> ChatCall:
    return read_chat({**CHAT, **fields}, SERVED)


def refused(**fields: Any) -> RequestRefused:
    with pytest.raises(RequestRefused) as caught:
        read(**fields)
    assert caught.value.http_status == 400
    return caught.value


def test_the_least_request_takes_the_defaults_of_the_api() -> None:
    call = read()
    assert call.request == ChatRequest(model=MODEL, messages=CHAT["messages"])
    assert (call.n, call.stream, call.include_usage) == (1, False, False)


def test_every_field_reaches_the_request() -> None:
    call = read(
        max_tokens=5,
        temperature=0,
        top_p=0.5,
        top_k=40,
        min_p=0.1,
        seed=-7,
        presence_penalty=-2,
        frequency_penalty=2,
        repetition_penalty=1.1,
        logit_bias={"5": -100, "319": 1.5},
        stop=["a", "b"],
        logprobs=True,
        top_logprobs=3,
        n=2,
        stream=True,
    )
    assert call.request == ChatRequest(
        model=MODEL,
        messages=CHAT["messages"],
        max_tokens=5,
        temperature=0.0,
        top_p=0.5,
        top_k=40,
        min_p=0.1,
        seed=-7,
        presence_penalty=-2.0,
        frequency_penalty=2.0,
        repetition_penalty=1.1,
        logit_bias=((5, -100.0), (319, 1.5)),
        stop=("a", "b"),
        logprobs=3,
    )
    assert (call.n, call.stream) == (2, True)


def test_null_means_absent_for_every_field() -> None:
    optional = CompletionCreateParamsStreaming.__annotations__ | CompletionCreateParamsBase.__annotations__
    names = set(optional) | {"top_k", "min_p", "repetition_penalty"}
    assert read(**dict.fromkeys(names - {"model", "messages"})) == read()


def test_c03_unknown_and_harmless_keys_are_ignored() -> None:
    extra = {"user": "u1", "metadata": {}, "store": True, "service_tier": "auto", "made_up": [1], "logit_bias": None}
    messages = [{"id": 1, "role": "user", "content": CHAT["messages"][0]["content"], "weight": 0}]
    assert read(**extra, messages=messages) == read()


@pytest.mark.parametrize("old, new, limit", [(3, None, 3), (None, 4, 4), (3, 4, 4), (4, 3, 3), (None, None, None)])
def test_c03_max_completion_tokens_wins_over_max_tokens(old: int | None, new: int | None, limit: int | None) -> None:
    call = read(max_tokens=old, max_completion_tokens=new)
    assert call.request.max_tokens == limit


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("value", [0, -1, 1.5, 3.0, "3", True, [], {}, 2**63])
def test_a_limit_that_is_no_positive_whole_number_is_refused(name: str, value: Any) -> None:
    assert refused(**{name: value}).param == name


@pytest.mark.parametrize("value", [0, 1e-10, 1e-4, 0.7, 1, 2, 2.0])
def test_c07_temperatures_from_0_to_2_are_taken(value: float) -> None:
    assert read(temperature=value).request.temperature == value


@pytest.mark.parametrize("value", [2.1, -1, -1e-9, "hot", "1", True, False, [], {}, float("inf"), 10**400])
def test_c07_other_temperatures_are_refused(value: Any) -> None:
    assert refused(temperature=value).param == "temperature"


@pytest.mark.parametrize("value", [1e-9, 0.5, 1, 1.0])
def test_c07_top_p_above_0_and_up_to_1_is_taken(value: float) -> None:
    assert read(top_p=value).request.top_p == value


@pytest.mark.parametrize("value", [0, 0.0, -0.1, 1.01, True, "1", [1]])
def test_c07_other_top_p_is_refused(value: Any) -> None:
    assert refused(top_p=value).param == "top_p"


@pytest.mark.parametrize("value, kept", [(0, 0), (-1, 0), (1, 1), (10**6, 10**6)])
def test_top_k_of_0_or_minus_1_is_off(value: int, kept: int) -> None:
    assert read(top_k=value).request.top_k == kept


@pytest.mark.parametrize("value", [-2, 1.0, True, "5", 2**31])
def test_other_top_k_is_refused(value: Any) -> None:
    assert refused(top_k=value).param == "top_k"


@pytest.mark.parametrize("value", [0, -(2**63), 2**63 - 1])
def test_a_seed_of_64_bits_is_taken(value: int) -> None:
    assert read(seed=value).request.seed == value


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
    assert read(stream=True, stream_options=options).include_usage is asked


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


# -- log probabilities


@pytest.mark.parametrize(
    "fields, alternatives",
    [
        ({}, None),
        ({"logprobs": False}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 0}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
        ({"top_logprobs": 0}, None),
    ],
    ids=repr,
)
def test_logprobs_say_how_many_alternatives_are_wanted(fields: dict[str, Any], alternatives: int | None) -> None:
    assert read(**fields).request.logprobs == alternatives


@pytest.mark.parametrize("value", [0, 5, "no", []])
def test_logprobs_of_a_chat_are_true_or_false(value: Any) -> None:
    assert refused(logprobs=value).param == "logprobs"


@pytest.mark.parametrize("value", [21, -1, "2", True, 1.0])
def test_other_top_logprobs_are_refused(value: Any) -> None:
    assert refused(logprobs=True, top_logprobs=value).param == "top_logprobs"


@pytest.mark.parametrize("logprobs", [False, None])
def test_top_logprobs_without_logprobs_are_refused(logprobs: bool | None) -> None:
    assert refused(logprobs=logprobs, top_logprobs=2).param == "top_logprobs"
