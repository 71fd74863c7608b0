"""Sampling against transformers' own logits processors, in the order in which `generate()` applies them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nodes.logits import processed
from nodes.sampling import Sampling, candidates, choose

VOCABULARY = 320
PROMPT = [5, 9, 7, 9, 200, 5, 9]
MADE = [11, 7, 11, 30]


def distribution(logits: torch.Tensor, sampling: Sampling, history: list[int]) -> torch.Tensor:
    """Probability of each token of the vocabulary."""
    ids, probabilities = candidates(logits, sampling, history)
    found = torch.zeros_like(logits)
    found[ids] = probabilities / probabilities.sum()
    return found


def of_transformers(model: Any, logits: torch.Tensor, history: list[int], **options: Any) -> torch.Tensor:
    """What `generate()` would draw from, by its own list of processors."""
    config, _ = model._prepare_generation_config(None, do_sample=True, **options)
    processors = model._get_logits_processor(generation_config=config, input_ids_seq_length=len(PROMPT))
    return torch.softmax(processors(torch.tensor([history]), logits[None].clone()), dim=-1)[0]


@pytest.fixture(scope="module")
def model(toy_reference: Any) -> Any:
    return toy_reference("llama")


@pytest.fixture(scope="module")
def logits(model: Any) -> torch.Tensor:
    """Of the real toy model after this text, spread so that cuts cut something."""
    with torch.inference_mode():
        found: torch.Tensor = model(torch.tensor([PROMPT + MADE])).logits[0, -1].float()
    return (found * 6).clone()


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"temperature": 1.0},
    "temperature": {"temperature": 0.6},
    "top_k": {"temperature": 0.8, "top_k": 7},
    "top_p": {"temperature": 1.3, "top_p": 0.7},
    "min_p": {"temperature": 1.0, "min_p": 0.1},
    "repetition": {"temperature": 1.0, "repetition_penalty": 1.7},
    "encouraged repetition": {"temperature": 1.0, "repetition_penalty": 0.6},
    "all": {"temperature": 0.9, "top_k": 60, "top_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.2},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_the_distribution_is_that_of_transformers(model: Any, logits: torch.Tensor, name: str) -> None:
    options = OPTIONS[name]
    ours = distribution(logits, Sampling(**options), PROMPT + MADE)
    theirs = of_transformers(model, logits, PROMPT + MADE, **{"top_k": 0, **options})
    assert torch.equal(ours > 0, theirs > 0), "the same tokens are left out"
    assert torch.allclose(ours, theirs, atol=1e-6)


def test_a_bias_is_that_of_transformers(model: Any, logits: torch.Tensor) -> None:
    bias = {17: 3.5, int(logits.argmax()): -100.0, 200: 1.0}
    ours = distribution(
        logits, Sampling(temperature=0.7, repetition_penalty=1.5, logit_bias=tuple(bias.items())), PROMPT + MADE
    )
    theirs = of_transformers(
        model,
        logits,
        PROMPT + MADE,
        temperature=0.7,
        top_k=0,
        repetition_penalty=1.5,
        sequence_bias=[[[token_id], value] for token_id, value in bias.items()],
    )
    assert torch.allclose(ours, theirs, atol=1e-6)


@given(
    made=st.lists(st.integers(0, VOCABULARY - 1), max_size=30),
    frequency=st.floats(-2, 2),
    presence=st.floats(-2, 2),
)
def test_presence_and_frequency_count_what_was_generated_and_nothing_else(
    made: list[int], frequency: float, presence: float
) -> None:
    logits = torch.linspace(-3, 3, VOCABULARY)
    sampling = Sampling(temperature=1.0, frequency_penalty=frequency, presence_penalty=presence, prompt_len=len(PROMPT))
    expected = [
        float(logits[token]) - frequency * made.count(token) - presence * (token in made) for token in range(VOCABULARY)
    ]
    assert processed(logits, sampling, PROMPT + made).tolist() == pytest.approx(expected, abs=1e-4)


def test_what_changes_nothing_costs_nothing() -> None:
    logits = torch.zeros(4)
    assert processed(logits, Sampling(temperature=0.5, top_k=2), []) is logits


def test_the_given_logits_stay_as_they_are() -> None:
    logits = torch.linspace(-1, 1, 8)
    before = logits.clone()
    processed(logits, Sampling(repetition_penalty=2.0, presence_penalty=1.0, logit_bias=((1, 5.0),)), [1, 2])
    assert torch.equal(logits, before)


def test_greedy_takes_the_best_of_the_changed_logits() -> None:
    logits = torch.tensor([0.0, 3.0, 2.0])
    assert choose(logits, Sampling(repetition_penalty=4.0), 1, [1]) == 2
    assert choose(logits, Sampling(logit_bias=((0, 9.0),)), 1) == 0


def test_penalties_of_an_empty_answer_change_nothing() -> None:
    logits = torch.linspace(-1, 1, 8)
    sampling = Sampling(presence_penalty=1.0, frequency_penalty=1.0, prompt_len=3)
    assert torch.equal(processed(logits, sampling, [1, 2, 3]), logits)
