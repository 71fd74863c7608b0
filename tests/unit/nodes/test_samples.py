from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from nodes import samples
from nodes.live import NodeSnapshot
from nodes.models import Node, NodeSample
from nodes.samples import Point

NOW = datetime(2026, 3, 1, 12, 0, 7, tzinfo=UTC)
STATS = {"sessions": 3, "bytes": 4096, "evictions": {"ttl": 2, "lru": 5}}
WORK = {"tokens": 900}


def seen(url: str = "http://a", stats: Any = STATS, work: Any = WORK) -> NodeSnapshot:
    return NodeSnapshot(url, {"work": work}, {"stats": stats}, None, "ready")


def point(seconds: float, **numbers: int) -> Point:
    return Point(
        NOW + timedelta(seconds=seconds), **({"sessions": 0, "bytes": 0, "evictions": 0, "tokens": 0} | numbers)
    )


@pytest.mark.parametrize(("seconds", "end"), [(15, "12:00:00"), (5, "12:00:05"), (3600, "12:00:00"), (6.5, "12:00:01")])
def test_an_interval_ends_at_the_same_moment_for_every_keeper(seconds: float, end: str) -> None:
    assert samples.interval_end(NOW, seconds).strftime("%H:%M:%S") == end
    assert samples.interval_end(samples.interval_end(NOW, seconds), seconds) == samples.interval_end(NOW, seconds)


def test_a_sample_holds_a_nodes_numbers() -> None:
    row = samples.sample_of(seen(), 1, NOW)
    assert row is not None
    assert (row.sessions, row.bytes, row.evictions, row.tokens) == (3, 4096, 7, 900)


@pytest.mark.parametrize(
    ("stats", "work"),
    [
        (STATS | {"bytes": None}, WORK),
        (STATS | {"evictions": 3}, WORK),
        (STATS | {"sessions": -1}, WORK),
        (STATS | {"bytes": 2**70}, WORK),
        (STATS, {"tokens": float("nan")}),
        (STATS, None),
    ],
)
def test_of_a_node_that_says_something_odd_there_is_no_sample(stats: Any, work: Any) -> None:
    assert samples.sample_of(seen(stats=stats, work=work), 1, NOW) is None


def test_a_silent_node_has_no_sample() -> None:
    assert samples.sample_of(NodeSnapshot("http://a", None, None, "silent", "unreachable"), 1, NOW) is None


@pytest.mark.django_db
def test_whoever_writes_second_is_ignored() -> None:
    Node.objects.create(url="http://a")
    samples.write([seen(), seen("http://not-in-the-database")], NOW)
    samples.write([seen(stats=STATS | {"sessions": 8})], NOW)
    assert list(NodeSample.objects.values_list("node__url", "sessions")) == [("http://a", 3)]


@pytest.mark.django_db
def test_old_samples_are_deleted_oldest_first_a_few_at_a_time() -> None:
    Node.objects.create(url="http://a")
    for minutes in range(6):
        samples.write([seen()], NOW - timedelta(minutes=minutes))
    horizon = NOW - timedelta(minutes=2)
    samples.delete_older(horizon, most=2)
    ages = [NOW - sample.at for sample in NodeSample.objects.order_by("-at")]
    assert ages == [timedelta(minutes=minutes) for minutes in range(4)]
    samples.delete_older(horizon, most=100)
    assert NodeSample.objects.count() == 3


@pytest.mark.django_db
def test_the_last_hour_is_read_by_node_in_order(django_assert_num_queries: Any) -> None:
    nodes = [Node.objects.create(url=url) for url in ("http://a", "http://b")]
    for minutes in (90, 5, 1):
        samples.write([seen("http://a"), seen("http://b")], NOW - timedelta(minutes=minutes))
    with django_assert_num_queries(1):
        points = samples.last_hour(NOW, 15, nodes=2)
    assert set(points) == {node.pk for node in nodes}
    assert [NOW - one.at for one in points[nodes[0].pk]] == [timedelta(minutes=5), timedelta(minutes=1)]
    assert set(samples.last_hour(NOW, 15, node_id=nodes[1].pk)) == {nodes[1].pk}


@pytest.mark.django_db
def test_of_many_nodes_every_fourth_interval_is_read() -> None:
    node = Node.objects.create(url="http://a")
    last = samples.interval_end(NOW, 15)
    for back in range(40):
        samples.write([seen()], last - timedelta(seconds=15 * back))
    assert len(samples.last_hour(NOW, 15, nodes=samples.MANY_NODES)[node.pk]) == 40
    assert len(samples.last_hour(NOW, 15, nodes=samples.MANY_NODES + 1)[node.pk]) == 10


def test_a_counter_grows_from_zero_again_after_a_restart() -> None:
    points = [point(0, tokens=100), point(10, tokens=150), point(20, tokens=30)]
    rates = samples.per_second(points, "tokens", over=timedelta(seconds=1))
    assert [rate for _, rate in rates] == [5, 3]


def test_a_rate_can_be_taken_over_a_longer_stretch() -> None:
    points = [point(10 * index, evictions=index % 2 + 2 * (index // 2)) for index in range(7)]
    rates = samples.per_second(points, "evictions", over=timedelta(seconds=40))
    assert [rate for _, rate in rates][-1] == 0.1
    assert samples.per_second(points[:1], "evictions", over=timedelta(seconds=40)) == []


def test_a_total_adds_what_there_is_at_each_moment() -> None:
    one, two = NOW, NOW + timedelta(seconds=15)
    assert samples.total([[(one, 1.0), (two, 2.0)], [(two, 5.0)]]) == [(one, 1.0), (two, 7.0)]
