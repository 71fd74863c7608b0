"""The tokens near the best one give the token that all of them give."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nodes.ranking import REACH, Ranking, rank
from nodes.sampling import Sampling, choose, uniform

PARAMETERS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([1e-6, 0.3, 1.0, 1.7, 50.0]),
        "top_k": st.sampled_from([0, 1, 3, 40, 400, 10_000]),
        "top_p": st.sampled_from([0.0, 0.2, 0.9, 0.99999, 1.0]),
        "min_p": st.sampled_from([0.0, 1e-7, 0.01, 0.5, 1.0]),
    }
)


def logits_of(seed: int, spread: float, ties: bool) -> torch.Tensor:
    logits = spread * torch.randn(500, generator=torch.Generator().manual_seed(seed))
    return logits.round() if ties else logits


@settings(max_examples=300, deadline=None)
@given(
    parameters=PARAMETERS,
    seed=st.integers(0, 10**6),
    spread=st.sampled_from([0.0, 0.5, 3.0, 8.0]),
    ties=st.booleans(),
    u=st.one_of(st.floats(0, 1, exclude_max=True), st.just(1 - 2**-53)),
    reach=st.sampled_from([0.0, 0.5, 3.0, REACH]),
)
def test_a_token_found_near_the_best_one_is_the_one_that_all_tokens_give(
    parameters: dict[str, Any], seed: int, spread: float, ties: bool, u: float, reach: float
) -> None:
    logits, sampling = logits_of(seed, spread, ties), Sampling(**parameters)
    whole = rank(logits, sampling)
    near = rank(logits, sampling, reach)
    assert whole.is_whole
    if near.holds(u):
        assert near.at(u) == whole.at(u)
    count = near.ids.numel()
    assert near.ids.tolist() == whole.ids[:count].tolist()
    assert torch.equal(near.probabilities, whole.probabilities[:count])
    assert near.total == whole.total


@pytest.mark.parametrize("u", [0.0, 0.5, 0.999, 1 - 2**-53])
def test_tokens_far_from_the_best_one_are_found_too(u: float) -> None:
    """Together they are as probable as the best one, each of them alone is beyond the reach."""
    logits = torch.zeros(100_000)
    logits[7] = math.log(100_000)
    sampling = Sampling(temperature=1.0)
    near = rank(logits, sampling, REACH)
    assert near.ids.tolist() == [7]
    assert near.holds(u) == (u < 0.5)
    assert (rank(logits, sampling).at(u) == 7) == (u < 0.5)


def test_the_choice_is_that_of_all_tokens() -> None:
    logits = logits_of(1, 3.0, ties=False)
    for position in range(300):
        sampling = Sampling(temperature=1.5, seed=3)
        expected = rank(logits, sampling).at(uniform(3, 0, position))
        assert choose(logits, sampling, position) == expected


@pytest.mark.parametrize("u", [0.99995, 1 - 2**-53])
def test_what_is_missing_to_one_is_not_given_to_the_least_probable_token(u: float) -> None:
    """In fp32 the probabilities of many tokens may sum to a little less than 1."""
    ids, probabilities = torch.tensor([7, 8, 9]), torch.tensor([0.5, 0.4999, 1e-12])
    ranking = Ranking(ids, probabilities, is_whole=True, total=torch.tensor(1.0))
    assert ranking.at(u) == 8
