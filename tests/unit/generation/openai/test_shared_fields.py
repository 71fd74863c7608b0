"""The fields that chats and completions share, read from a chat."""

from __future__ import annotations

from typing import Any

import pytest

from generation.errors import RequestRefused
from generation.openai.requests import read_chat
from generation.openai.shared_fields import LONGEST_STOP, MOST_BIASES, Served

from .conftest import CHAT
from .test_requests import read, refused

# -- stop strings


@pytest.mark.parametrize(
    "value, stops",
    [
        ("b", ("b",)),
        (["\n"], ("\n",)),
        (["1", "2", "3", "4"], ("1", "2", "3", "4")),
        (["a", "a"], ("a",)),
        ([], ()),
        (None, ()),
        ("x" * LONGEST_STOP, ("x" * LONGEST_STOP,)),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_b05_stop_is_a_string_or_up_to_four(value: Any, stops: tuple[str, ...]) -> None:
    assert read(stop=value).request.stop == stops


@pytest.mark.parametrize(
    "value", [[""], "", ["a", ""], list("12345"), 5, [5], [None], {}, True, "x" * (LONGEST_STOP + 1)], ids=repr
)
def test_b05_other_stops_are_refused(value: Any) -> None:
    assert refused(stop=value).param == "stop"


# -- penalties and biases


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty"])
@pytest.mark.parametrize("value", [2.1, -2.1, "0", False, [], 1e999])
def test_a_penalty_outside_minus_2_to_2_is_refused(name: str, value: Any) -> None:
    assert refused(**{name: value}).param == name


@pytest.mark.parametrize("value", [0, -1, 101, "1", True])
def test_a_repetition_penalty_must_be_above_0(value: Any) -> None:
    assert refused(repetition_penalty=value).param == "repetition_penalty"


@pytest.mark.parametrize("value", [-0.1, 1.1, "0", False])
def test_min_p_outside_0_to_1_is_refused(value: Any) -> None:
    assert refused(min_p=value).param == "min_p"


@pytest.mark.parametrize("value", [{"0": 0}, {"319": 100}, {"5": -100, "6": 0.5}, {}])
def test_biases_of_tokens_within_the_vocabulary_are_taken(value: dict[str, float]) -> None:
    assert dict(read(logit_bias=value).request.logit_bias) == {int(key): bias for key, bias in value.items()}


@pytest.mark.parametrize(
    "value",
    [
        *({"320": 1}, {"-1": 1}, {"05": 1}, {"5.0": 1}, {"hello": 1}, {"": 1}, {"\u0665": 1}, {"9" * 5000: 1}),
        *({"5": 100.5}, {"5": -101}, {"5": "1"}, {"5": True}, {"5": None}, {"5": 1e999}),
        *([], "x", 5, [["5", 1]]),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_other_biases_are_refused(value: Any) -> None:
    assert refused(logit_bias=value).param == "logit_bias"


def test_the_token_that_the_model_does_not_have_is_named() -> None:
    assert "320" in refused(logit_bias={"5": 1, "320": 1}).detail


def test_there_is_a_limit_of_biases() -> None:
    served = Served(vocab_size=10_000, most_choices=1)
    biases = {str(token_id): 1 for token_id in range(MOST_BIASES)}
    assert len(read_chat({**CHAT, "logit_bias": biases}, served).request.logit_bias) == MOST_BIASES
    with pytest.raises(RequestRefused):
        read_chat({**CHAT, "logit_bias": {**biases, "9999": 1}}, served)


# -- several answers


@pytest.mark.parametrize("value", [1, 8])
def test_n_up_to_the_servers_limit_is_taken(value: int) -> None:
    assert read(n=value).n == value


@pytest.mark.parametrize("value", [0, -1, 9, 2**70, 1.0, "1", True, []])
def test_other_n_is_refused(value: Any) -> None:
    assert refused(n=value).param == "n"
