from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from meshsite.bench.contenders import (
    ContenderFailed,
    Setup,
    Workers,
    first_token_ms,
    medians,
    setups,
    tokens_per_second,
)
from tests.processes import ROOT


class Runner:
    """A contender that says how long it takes for each token."""

    def __init__(self, setup: str, *token_seconds: float) -> None:
        self.name = "runner"
        self.setup = setup
        self.closed = False
        self._token_seconds = list(token_seconds)

    def generate(self, prompt: list[int], new_tokens: int) -> list[float]:
        seconds = self._token_seconds.pop(0)
        return [0.0, *(5.0 + index * seconds for index in range(new_tokens))]

    def memory(self) -> dict[str, int | None]:
        return {}

    def close(self) -> None:
        self.closed = True


def test_tokens_per_second_leave_the_first_token_out() -> None:
    assert tokens_per_second([0.0, 100.0, 100.5, 101.0]) == pytest.approx(2.0)


def test_one_lucky_round_decides_nothing() -> None:
    slow, fast = Runner("slow", 0.2, 0.01, 0.2), Runner("fast", 0.1, 0.1, 9.0)
    scores = medians([slow, fast], lambda one: tokens_per_second(one.generate([1], 5)), 3)
    assert scores == [pytest.approx(5.0), pytest.approx(10.0)]


def test_setups_are_measured_in_turn() -> None:
    order: list[str] = []

    def score(one: Any) -> float:
        order.append(one.setup)
        return 1.0

    medians([Runner("a"), Runner("b")], score, 2)
    assert order == ["a", "b", "b", "a"]


def test_the_time_to_the_first_token() -> None:
    assert first_token_ms([1.0, 1.5, 9.0]) == 500.0


@pytest.mark.parametrize(("threads", "tunes"), [(0, True), (0, False), (1, True), (4, True)])
def test_the_untouched_default_is_always_among_the_tries(threads: int, tunes: bool) -> None:
    assert Setup("untouched") in setups(2, threads, tunes=tunes)


def test_waiting_is_tried_both_ways() -> None:
    policies = [setup.environ.get("OMP_WAIT_POLICY") for setup in setups(2, 0, tunes=True)]
    assert policies == [None, None, "active", "passive"]


def test_a_process_that_cannot_load_is_told_with_its_last_words(tmp_path: Path) -> None:
    worker = Workers(
        "broken",
        "no such kind",
        tmp_path,
        "float32",
        Setup("untouched"),
        processes=1,
        base_dir=ROOT,
        log=tmp_path / "logs" / "broken.log",
    )
    try:
        with pytest.raises(ContenderFailed, match=r"broken ended: KeyError: 'no such kind' \(log: "):
            worker.wait()
    finally:
        worker.close()
        worker.close()  # twice does no harm
