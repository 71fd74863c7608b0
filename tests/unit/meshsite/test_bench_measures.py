from __future__ import annotations

from dataclasses import replace

import pytest

from meshsite.bench.measures import decode, first_token, memory, text
from meshsite.bench.scale import QUICK

SCALE = replace(QUICK, rounds=2, tokens=4, prompts=(3, 5))


class Runner:
    """A contender of a fixed speed that notes who ran when."""

    setup = ""

    def __init__(self, name: str, ran: list[str], prefill_seconds: float, token_seconds: float) -> None:
        self.name = name
        self._ran = ran
        self._prefill_seconds = prefill_seconds
        self._token_seconds = token_seconds
        self.asked: list[tuple[int, int]] = []

    def generate(self, prompt: list[int], new_tokens: int) -> list[float]:
        self._ran.append(self.name)
        self.asked.append((len(prompt), new_tokens))
        first = self._prefill_seconds * len(prompt)
        return [0.0, *(first + index * self._token_seconds for index in range(new_tokens))]

    def memory(self) -> dict[str, int | None]:
        return {"process 1": 7}

    def close(self) -> None:
        return


@pytest.fixture
def ran() -> list[str]:
    return []


@pytest.fixture
def runners(ran: list[str]) -> dict[str, Runner]:
    return {"a": Runner("a", ran, 0.1, 0.5), "b": Runner("b", ran, 0.2, 0.25)}


def test_contenders_decode_in_turn_and_give_one_sample_a_round(runners: dict[str, Runner], ran: list[str]) -> None:
    found = decode(runners, 100, SCALE, lambda said: None)
    assert ran == ["a", "b", "b", "a"]
    assert found == {"a": [pytest.approx(2.0)] * 2, "b": [pytest.approx(4.0)] * 2}
    assert runners["a"].asked == [(SCALE.prompt, SCALE.tokens + 1)] * 2


def test_the_first_token_is_measured_for_each_length(runners: dict[str, Runner]) -> None:
    found = first_token(runners, 100, SCALE, lambda said: None)
    assert found["3"] == {"a": [pytest.approx(300)] * 2, "b": [pytest.approx(600)] * 2}
    assert found["5"] == {"a": [pytest.approx(500)] * 2, "b": [pytest.approx(1000)] * 2}


def test_every_contender_says_its_memory(runners: dict[str, Runner]) -> None:
    assert memory(runners) == {"a": {"process 1": 7}, "b": {"process 1": 7}}


def test_texts_repeat_by_their_seed_and_stay_in_the_vocabulary() -> None:
    assert text(50, 10) == text(50, 10)
    assert text(50, 10) != text(50, 10, seed=1)
    assert set(text(500, 10)) == set(range(10))
