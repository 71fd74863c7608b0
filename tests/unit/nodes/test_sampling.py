from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter

import pytest
import torch

from nodes.errors import BadRequest
from nodes.sampling import Sampling, TokenLogprobs, choose, logprobs_of, uniform

LOGITS = torch.log(torch.tensor([0.1, 0.4, 0.2, 0.3]))


def drawn(sampling: Sampling, count: int = 4000) -> dict[int, float]:
    counts = Counter(choose(LOGITS, sampling, position) for position in range(count))
    return {token: counts[token] / count for token in sorted(counts)}


def test_temperature_zero_takes_the_best_and_ignores_the_seed() -> None:
    assert {choose(LOGITS, Sampling(temperature=0, seed=seed), 3) for seed in range(20)} == {1}


def test_a_seed_repeats_and_positions_differ() -> None:
    sampling = Sampling(temperature=1, seed=7)
    first = [choose(LOGITS, sampling, position) for position in range(50)]
    assert first == [choose(LOGITS, sampling, position) for position in range(50)]
    assert len(set(first)) > 1
    assert first != [choose(LOGITS, Sampling(temperature=1, seed=8), position) for position in range(50)]


def test_uniform_numbers_are_those_that_the_protocol_defines() -> None:
    # sha256('7,0,12') and so on, the first 53 bits: docs/protocol.md gives the same numbers.
    assert [uniform(7, 0, 12), uniform(0, 0, 0), uniform(2**63 - 1, 1, 500)] == [
        0.5993296444361638,
        0.484396524105176,
        0.1931362675114754,
    ]
    values = [uniform(1, 0, position) for position in range(10_000)]
    assert min(values) >= 0 and max(values) < 1
    assert sum(values) / len(values) == pytest.approx(0.5, abs=0.02)


def test_tokens_come_as_often_as_the_model_says() -> None:
    assert drawn(Sampling(temperature=1, seed=1)) == pytest.approx({0: 0.1, 1: 0.4, 2: 0.2, 3: 0.3}, abs=0.03)


def test_a_lower_temperature_sharpens() -> None:
    squares = {0: 0.01, 1: 0.16, 2: 0.04, 3: 0.09}
    total = sum(squares.values())
    expected = {token: value / total for token, value in squares.items()}
    assert drawn(Sampling(temperature=0.5, seed=1)) == pytest.approx(expected, abs=0.03)


def test_top_k_keeps_the_k_best() -> None:
    assert drawn(Sampling(temperature=1, top_k=2, seed=1)) == pytest.approx({1: 4 / 7, 3: 3 / 7}, abs=0.03)


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    assert drawn(Sampling(temperature=1, top_p=0.65, seed=1)) == pytest.approx({1: 4 / 7, 3: 3 / 7}, abs=0.03)
    assert set(drawn(Sampling(temperature=1, top_p=0.75, seed=1))) == {1, 2, 3}


def test_c07_extreme_values_choose_the_best_token() -> None:
    for sampling in (
        Sampling(temperature=1e-4),
        Sampling(temperature=1e-10),
        Sampling(temperature=1, top_p=1e-9),
        Sampling(temperature=1, top_p=0.0),
        Sampling(temperature=1, top_k=1),
    ):
        assert {choose(LOGITS * 100, sampling, position) for position in range(50)} == {1}


def test_equal_probabilities_are_taken_in_the_order_of_their_ids() -> None:
    logits = torch.zeros(5)
    assert {choose(logits, Sampling(temperature=1, top_k=2, seed=3), position) for position in range(50)} == {0, 1}


@pytest.mark.parametrize(
    "value",
    [
        {"temperature": "hot"},
        {"temperature": True},
        {"temperature": -1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"temperature": 10**400},
        {"top_p": 1.5},
        {"top_k": 2.5},
        {"top_k": -1},
        {"seed": 2**64},
        {"want_token": 1},
        {"min_p": 1.5},
        {"presence_penalty": "much"},
        {"frequency_penalty": float("inf")},
        {"repetition_penalty": 0},
        {"prompt_len": -1},
        {"logprobs": 1000},
        {"logprobs": True},
        {"logit_bias": {"1": 5}},
        {"logit_bias": [[1]]},
        {"logit_bias": [["1", 5]]},
        {"logit_bias": [[1, float("nan")]]},
        {"mirostat": 2},
    ],
)
def test_a_bad_or_unknown_parameter_is_refused_by_name(value: dict[str, object]) -> None:
    with pytest.raises(BadRequest, match=next(iter(value))):
        Sampling.from_json(value)


def test_parameters_survive_the_wire() -> None:
    every = Sampling(
        temperature=0.7,
        top_p=0.9,
        top_k=40,
        min_p=0.05,
        seed=2**62,
        choice=1,
        want_token=False,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        repetition_penalty=1.1,
        logit_bias=((3, -100.0), (7, 2.5)),
        prompt_len=12,
        logprobs=5,
    )
    assert all(getattr(every, one.name) != one.default for one in dataclasses.fields(every))
    for sampling in (every, Sampling(), Sampling(logprobs=0)):
        assert Sampling.from_json(json.loads(json.dumps(sampling.as_json()))) == sampling
    assert Sampling().as_json() == {}, "what changes nothing takes no bytes"
    assert Sampling.from_json(None) == Sampling()


def test_min_p_keeps_what_is_not_much_less_probable_than_the_best() -> None:
    assert drawn(Sampling(temperature=1, min_p=0.7, seed=1)) == pytest.approx({1: 4 / 7, 3: 3 / 7}, abs=0.03)
    assert set(drawn(Sampling(temperature=1, min_p=1.0, seed=1))) == {1}


def test_log_probabilities_are_the_models_own_whatever_is_sampled() -> None:
    found = logprobs_of(LOGITS * 1.0, token_id=0, top=2)
    assert found.logprob == pytest.approx(math.log(0.1))
    assert [token_id for token_id, _ in found.top] == [1, 3]
    assert [value for _, value in found.top] == pytest.approx([math.log(0.4), math.log(0.3)])
    assert logprobs_of(LOGITS, 2, 0).top == ()
    assert len(logprobs_of(LOGITS, 2, 100).top) == 4, "no more than there are"
    assert TokenLogprobs.from_json(json.loads(json.dumps(found.as_json()))) == found


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {"logprob": None, "top": []},
        {"logprob": -1.0, "top": [[1]]},
        {"logprob": -1.0, "top": [["a", -1.0]]},
        {"logprob": float("nan"), "top": []},
        {"logprob": True, "top": []},
    ],
)
def test_log_probabilities_that_are_none_are_not_believed(value: object) -> None:
    with pytest.raises(ValueError, match=r"log|top"):
        TokenLogprobs.from_json(value)
