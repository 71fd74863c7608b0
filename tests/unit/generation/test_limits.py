"""The same whoever counts: the database and Redis."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from generation.errors import QuotaExceeded, RateLimitExceeded, RequestRefused
from generation.key_usage import add_usage, day_of
from generation.limits import KeyLimits, Level, Standing
from generation.models import APIKey
from tests.unit.generation.counting import ME, OTHER, Counting, InDatabase, InRedis, key
from tests.unit.generation.wall_clock import NOON

pytestmark = pytest.mark.django_db


@pytest.fixture(params=["database", "redis"])
def counting(request: pytest.FixtureRequest) -> Counting:
    if request.param == "database":
        return InDatabase()
    client = request.getfixturevalue("redis_server").client()
    request.addfinalizer(client.close)
    client.flushdb()
    return InRedis(client)


@pytest.fixture
def limits(counting: Counting) -> KeyLimits:
    return counting.worker()


def use(limits: KeyLimits, row: APIKey, prompt: int, answer: int) -> None:
    """As the end of a generation does it."""
    add_usage(row.pk, day_of(NOON), requests=1, prompt_tokens=prompt, completion_tokens=answer)
    limits.used(row, day_of(NOON))


# -- requests per minute


def test_a_key_without_limits_costs_no_query(limits: KeyLimits) -> None:
    row = key()
    with CaptureQueriesContext(connection) as queries:
        limits.give_back(limits.admit(row, owner=ME))
        assert limits.standing(row) == Standing()
    assert len(queries) == 0


def test_as_many_requests_as_the_limit_pass_in_any_60_seconds(limits: KeyLimits, counting: Counting) -> None:
    row, wall = key(requests_per_minute=3), counting.wall
    for seconds, left in ((0, 2), (10, 1), (20, 0)):
        wall.now = NOON + timedelta(seconds=seconds)
        assert limits.admit(row, owner=ME).standing.requests == Level(3, left, 60)
    wall.now = NOON + timedelta(seconds=45.5)
    with pytest.raises(RateLimitExceeded, match="3 requests per minute") as caught:
        limits.admit(row, owner=ME)
    # The first leaves the window at 60; all of the limit is there again when the last one, of 20, has left.
    assert caught.value.retry_after == 15
    assert caught.value.standing.requests == Level(3, 0, 34.5)
    wall.now = NOON + timedelta(seconds=60)
    assert limits.admit(row, owner=ME).standing.requests == Level(3, 0, 60)
    with pytest.raises(RateLimitExceeded):
        limits.admit(row, owner=ME)


def test_a_refused_request_counts_for_nothing(limits: KeyLimits, counting: Counting) -> None:
    row = key(requests_per_minute=1)
    limits.admit(row, owner=ME)
    for _ in range(5):
        counting.advance(10)
        with pytest.raises(RateLimitExceeded):
            limits.admit(row, owner=ME)
    counting.advance(10)
    limits.admit(row, owner=ME)


def test_after_the_limit_was_lowered_the_time_to_wait_is_that_until_few_enough_are_left(
    limits: KeyLimits, counting: Counting
) -> None:
    row = key(requests_per_minute=5)
    for _ in range(4):
        limits.admit(row, owner=ME)
        counting.advance(10)
    APIKey.objects.update(requests_per_minute=2)
    row.refresh_from_db()
    with pytest.raises(RateLimitExceeded) as caught:
        limits.admit(row, owner=ME)
    assert caught.value.retry_after == 40  # those of 0, 10 and 20 s must leave, the last of them at 80; it is 40 now


def test_n_answers_are_one_request(limits: KeyLimits) -> None:
    assert limits.admit(key(requests_per_minute=3), owner=ME, generations=4).standing.requests == Level(3, 2, 60)


def test_keys_do_not_count_for_each_other(limits: KeyLimits) -> None:
    one, two = key(requests_per_minute=1), key(requests_per_minute=1)
    limits.admit(one, owner=ME)
    limits.admit(two, owner=ME)


# -- generations at once


def test_a_slot_is_free_again_once_it_was_given_back(limits: KeyLimits) -> None:
    row = key(concurrent_generations=2)
    first = limits.admit(row, owner=ME)
    limits.admit(row, owner=ME)
    with pytest.raises(RateLimitExceeded, match="2 generations at once; 2 are running") as caught:
        limits.admit(row, owner=ME)
    assert caught.value.retry_after == 1
    limits.give_back(first)
    third = limits.admit(row, owner=ME)
    limits.give_back(first)  # twice is once
    with pytest.raises(RateLimitExceeded):
        limits.admit(row, owner=ME)
    limits.give_back(third)
    limits.admit(row, owner=ME)


def test_n_answers_are_n_generations(limits: KeyLimits) -> None:
    row = key(concurrent_generations=4)
    three = limits.admit(row, owner=ME, generations=3)
    with pytest.raises(RateLimitExceeded):
        limits.admit(row, owner=ME, generations=2)
    limits.admit(row, owner=ME, generations=1)
    limits.give_back(three)
    limits.admit(row, owner=ME, generations=3)


def test_more_answers_than_ever_run_at_once_are_a_mistake_in_the_request(limits: KeyLimits) -> None:
    with pytest.raises(RequestRefused, match="3 generations at once, not 4") as caught:
        limits.admit(key(concurrent_generations=3), owner=ME, generations=4)
    assert (caught.value.http_status, caught.value.param) == (400, "n")


def test_what_a_long_answer_holds_is_held_after_the_window_too(limits: KeyLimits, counting: Counting) -> None:
    row = key(concurrent_generations=1)
    admission = limits.admit(row, owner=ME)
    counting.advance(600)
    with pytest.raises(RateLimitExceeded):
        limits.admit(row, owner=ME)
    limits.give_back(admission)
    limits.admit(row, owner=ME)


def test_f03_what_another_worker_holds_counts_while_that_worker_lives(limits: KeyLimits, counting: Counting) -> None:
    others = counting.worker(OTHER)
    row = key(concurrent_generations=1)
    others.admit(row, owner=OTHER)
    counting.advance(90)
    counting.kill(others)
    counting.advance(29)
    with pytest.raises(RateLimitExceeded):
        limits.admit(row, owner=ME)
    counting.advance(1)
    limits.admit(row, owner=ME)


def test_a_dead_workers_request_counts_for_the_minute_all_the_same(limits: KeyLimits, counting: Counting) -> None:
    row = key(requests_per_minute=1, concurrent_generations=1)
    others = counting.worker(OTHER)
    others.admit(row, owner=OTHER)
    counting.kill(others)
    counting.advance(31)
    with pytest.raises(RateLimitExceeded, match="per minute"):
        limits.admit(row, owner=ME)


def test_nothing_is_held_for_longer_than_a_generation_may_take(
    limits: KeyLimits, counting: Counting, settings: Any
) -> None:
    settings.MESHNET_GENERATION_SECONDS = 100.0
    row = key(concurrent_generations=1)
    limits.admit(row, owner=ME)
    counting.advance(131)
    limits.admit(row, owner=ME)


# -- tokens per day


def test_tokens_of_prompts_and_answers_count_until_the_day_is_over(limits: KeyLimits, counting: Counting) -> None:
    row = key(tokens_per_day=100)
    assert limits.admit(row, owner=ME).standing.tokens == Level(100, 100, 12 * 3600)
    use(limits, row, 60, 39)
    assert limits.admit(row, owner=ME).standing.tokens == Level(100, 1, 12 * 3600)
    use(limits, row, 1, 40)
    counting.wall.now = datetime(2026, 3, 1, 23, 59, 30, 500_000, tzinfo=UTC)
    with pytest.raises(QuotaExceeded, match="its 100 tokens of today") as caught:
        limits.admit(row, owner=ME)
    assert (caught.value.code, caught.value.retry_after) == ("insufficient_quota", 30)
    assert caught.value.standing.tokens == Level(100, 0, 30)
    counting.wall.now = datetime(2026, 3, 2, tzinfo=UTC)
    assert limits.admit(row, owner=ME).standing.tokens == Level(100, 100, 24 * 3600)


def test_a_generation_that_ends_where_it_is_tomorrow_already_costs_nobody_of_today(
    limits: KeyLimits, counting: Counting
) -> None:
    """The clock of one head is ahead, and it is near midnight."""
    row = key(tokens_per_day=100)
    use(limits, row, 60, 10)
    tomorrow = day_of(NOON + timedelta(days=1))
    add_usage(row.pk, tomorrow, requests=1, prompt_tokens=50, completion_tokens=50)
    limits.used(row, tomorrow)
    assert limits.admit(row, owner=OTHER).standing.tokens == Level(100, 30, 12 * 3600)
    counting.advance(12 * 3600)
    with pytest.raises(QuotaExceeded):
        limits.admit(row, owner=OTHER)


def test_a_used_up_day_is_what_is_said_even_where_the_minute_is_full_too(limits: KeyLimits) -> None:
    row = key(tokens_per_day=5, requests_per_minute=1, concurrent_generations=1)
    limits.admit(row, owner=ME)
    use(limits, row, 3, 2)
    with pytest.raises(QuotaExceeded):
        limits.admit(row, owner=ME)


# -- looking


def test_looking_counts_for_nothing(limits: KeyLimits, counting: Counting) -> None:
    row = key(requests_per_minute=2, tokens_per_day=10)
    assert limits.standing(row) == Standing(Level(2, 2, 0), Level(10, 10, 12 * 3600))
    limits.admit(row, owner=ME)
    counting.advance(20)
    for _ in range(3):
        assert limits.standing(row).requests == Level(2, 1, 40)


def test_a_key_that_was_deleted_meanwhile_is_counted_as_it_was(limits: KeyLimits) -> None:
    row = key(tokens_per_day=5)
    APIKey.objects.all().delete()
    gone = APIKey(pk=f"{row.prefix}.gone", prefix=row.prefix, tokens_per_day=5)
    assert limits.admit(gone, owner=ME).standing.tokens is not None
