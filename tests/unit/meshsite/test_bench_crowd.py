from __future__ import annotations

import threading

import pytest

from meshsite.bench.contenders import ContenderFailed
from meshsite.bench.crowd import gaps, run_all


def test_gaps_before_a_long_prompt_and_while_it_is_prefilled() -> None:
    came = [
        [0.0, 0.1, 0.2, 0.6, 1.5, 1.6],  # 0.2 to 0.6 and 0.6 to 1.5 have a part in [0.5, 1.0]
        [0.0, 0.1, 0.2, 0.3, 0.7],
    ]
    found = gaps(came, 0.5, 1.0)
    assert found["median_ms"] == pytest.approx(100)
    assert found["worst_ms"] == pytest.approx(900)
    assert found["during_ms"] == pytest.approx(400)
    assert found["first_token_ms"] == pytest.approx(500)


def test_a_gap_that_spans_the_whole_prefill_is_the_worst() -> None:
    assert gaps([[0.0, 0.1, 5.0]], 1.0, 2.0)["worst_ms"] == pytest.approx(4900)


def test_without_tokens_beside_the_prompt_nothing_was_measured() -> None:
    with pytest.raises(ContenderFailed, match="No token came"):
        gaps([[0.0, 0.1]], 0.5, 1.0)


def test_all_run_at_once() -> None:
    meeting = threading.Barrier(3)
    run_all([lambda: meeting.wait(5) and None for _ in range(3)])
    assert not meeting.broken


def test_the_first_error_is_told_after_all_have_ended() -> None:
    ended = []

    def fail() -> None:
        raise ValueError("no slot")

    with pytest.raises(ContenderFailed, match="A session ended: no slot"):
        run_all([fail, lambda: ended.append(1)])
    assert ended == [1]
