from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from generation.models import Generation
from generation.timeline import TimeLine, time_line

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def line(seconds: float | None, *events: tuple[float, str], **fields: Any) -> TimeLine:
    timeline = [{"at": at, "event": event, "detail": "d"} for at, event in events]
    finished = None if seconds is None else START + timedelta(seconds=seconds)
    return time_line(Generation(**{"started_at": START, "finished_at": finished, "timeline": timeline, **fields}))


def stretches(of: TimeLine) -> list[tuple[str, str, str]]:
    return [(bar.kind, bar.x, bar.width) for bar in of.stretches]


def test_a_plain_answer_is_a_prefill_and_a_decode() -> None:
    plain = line(10, (0.0, "prefill"), (2.5, "first token"))
    assert stretches(plain) == [("prefill", "0.00%", "25.00%"), ("decode", "25.00%", "75.00%")]
    assert (plain.moments, plain.kinds, plain.seconds) == ([], ["prefill", "decode"], "10.00 s")


def test_a_miss_is_a_moment_and_the_re_prefill_that_follows_ends_with_its_token() -> None:
    repaired = line(
        10, (0, "prefill"), (1, "first token"), (4, "cache miss"), (4, "re-prefill"), (6, "decode"), (8, "failover")
    )
    assert stretches(repaired) == [
        ("prefill", "0.00%", "10.00%"),
        ("decode", "10.00%", "30.00%"),
        ("re-prefill", "40.00%", "20.00%"),
        ("decode", "60.00%", "40.00%"),
    ]
    assert [(bar.kind, bar.x, bar.css) for bar in repaired.moments] == [
        ("cache miss", "40.00%", "cache-miss"),
        ("failover", "80.00%", "failover"),
    ]
    assert repaired.kinds == ["prefill", "decode", "re-prefill", "cache miss", "failover"]


def test_looks_while_waiting_are_one_wait() -> None:
    waited = line(10, (0, "waiting"), (1, "waiting"), (2, "waiting"), (5, "prefill"), (6, "waiting"), (8, "re-prefill"))
    assert stretches(waited) == [
        ("waiting", "0.00%", "50.00%"),
        ("prefill", "50.00%", "10.00%"),
        ("waiting", "60.00%", "20.00%"),
        ("re-prefill", "80.00%", "20.00%"),
    ]


def test_what_was_short_is_still_to_be_seen() -> None:
    assert stretches(line(1000, (0, "prefill"), (0.001, "first token")))[0] == ("prefill", "0.00%", "0.40%")


def test_the_bar_in_words_is_there_for_those_who_do_not_see_it() -> None:
    assert line(2, (0, "prefill"), (1, "failover")).summary == "prefill from 0.00 s to 2.00 s; failover at 1.00 s: d"


def test_a_long_table_of_events_is_folded() -> None:
    assert not line(10, *[(at / 10, "waiting") for at in range(15)]).is_long
    assert line(10, *[(at / 10, "waiting") for at in range(16)]).is_long


def test_nodes_are_compared_by_the_longest() -> None:
    hops = [
        {"node": "a", "steps": 10, "compute_ms": 1500.0, "queue_ms": 0, "network_ms": 500.0},
        {"node": "b", "steps": 10, "compute_ms": 500.0, "queue_ms": 100.0, "network_ms": 400.0},
    ]
    first, second = line(3, hops=hops, route=[{"node": "b", "start": 2, "end": 4}]).hops
    assert (first.layers, first.compute, first.queue, first.per_step) == ("-", "1.50 s", "0.0 ms", "200.0 ms")
    assert [(bar.kind, bar.x, bar.width) for bar in first.bars] == [
        ("compute", "0.00%", "75.00%"),
        ("network", "75.00%", "25.00%"),
    ]
    assert (second.layers, second.steps) == ("2:4", "10")
    assert [(bar.kind, bar.x, bar.width) for bar in second.bars] == [
        ("compute", "0.00%", "25.00%"),
        ("queue", "25.00%", "5.00%"),
        ("network", "30.00%", "20.00%"),
    ]


@pytest.mark.parametrize("odd", [None, {}, "x", ["x", None, {"at": "late"}, {"node": 1}], [{"at": 0}], [{"node": "a"}]])
def test_rows_of_another_shape_do_no_harm(odd: Any) -> None:
    for seconds in (None, 0.0, 1.0):
        assert line(seconds, timeline=odd, hops=odd, route=odd).stretches == []
