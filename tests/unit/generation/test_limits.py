from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import Mock

import pytest
from django.db import DatabaseError, connection
from django.db.models.query import QuerySet
from django.test.utils import CaptureQueriesContext

from generation.errors import LimitsUnavailable, QuotaExceeded, RateLimitExceeded, RequestRefused
from generation.key_usage import add_usage, day_of
from generation.limits import KeyLimits, Level, Standing
from generation.models import APIKey, HeadWorker, KeyRequest
from tests.unit.generation.wall_clock import NOON, WallClock

pytestmark = pytest.mark.django_db

ME, OTHER = "boot-me", "boot-other"


@pytest.fixture
def wall() -> WallClock:
    return WallClock()


@pytest.fixture
def limits(wall: WallClock) -> KeyLimits:
    return KeyLimits(wall)


def key(**fields: Any) -> APIKey:
    row: APIKey = APIKey.objects.create_key(name="app", **fields)[0]
    return row


def lives(boot_id: str, at: datetime) -> None:
    HeadWorker.objects.update_or_create(
        boot_id=boot_id, defaults={"hostname": "h", "pid": 1, "started_at": at, "beat_at": at}
    )


# -- requests per minute


def test_a_key_without_limits_costs_no_query(limits: KeyLimits) -> None:
    row = key()
    with CaptureQueriesContext(connection) as queries:
        limits.give_back(limits.admit(row, owner=ME))
        assert limits.standing(row) == Standing()
    assert len(queries) == 0


def test_as_many_requests_as_the_limit_pass_in_any_60_seconds(limits: KeyLimits, wall: WallClock) -> None:
    row = key(requests_per_minute=3)
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


def test_a_refused_request_counts_for_nothing(limits: KeyLimits, wall: WallClock) -> None:
    row = key(requests_per_minute=1)
    limits.admit(row, owner=ME)
    for _ in range(5):
        wall.advance(10)
        with pytest.raises(RateLimitExceeded):
            limits.admit(row, owner=ME)
    wall.advance(10)
    limits.admit(row, owner=ME)


def test_after_the_limit_was_lowered_the_time_to_wait_is_that_until_few_enough_are_left(
    limits: KeyLimits, wall: WallClock
) -> None:
    row = key(requests_per_minute=5)
    for _ in range(4):
        limits.admit(row, owner=ME)
        wall.advance(10)
    APIKey.objects.update(requests_per_minute=2)
    with pytest.raises(RateLimitExceeded) as caught:
        limits.admit(row, owner=ME)  # the row in hand still says 5
    assert caught.value.retry_after == 40  # those of 0, 10 and 20 s must leave, the last of them at 80; it is 40 now


def test_n_answers_are_one_request(limits: KeyLimits) -> None:
    assert limits.admit(key(requests_per_minute=3), owner=ME, generations=4).standing.requests == Level(3, 2, 60)


def test_keys_do_not_count_for_each_other(limits: KeyLimits) -> None:
    one, two = key(requests_per_minute=1), key(requests_per_minute=1)
    limits.admit(one, owner=ME)
    limits.admit(two, owner=ME)


def test_old_rows_go_when_the_key_is_used_again(limits: KeyLimits, wall: WallClock) -> None:
    row = key(requests_per_minute=9)
    for _ in range(5):
        limits.admit(row, owner=ME)
    wall.advance(60)
    limits.admit(row, owner=ME)
    assert KeyRequest.objects.count() == 1


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


def test_what_a_long_answer_holds_is_held_after_the_window_too(limits: KeyLimits, wall: WallClock) -> None:
    row = key(concurrent_generations=1)
    admission = limits.admit(row, owner=ME)
    wall.advance(600)
    with pytest.raises(RateLimitExceeded):
        limits.admit(row, owner=ME)
    limits.give_back(admission)
    limits.admit(row, owner=ME)


def test_f03_what_another_worker_holds_counts_while_that_worker_lives(wall: WallClock) -> None:
    mine, others = KeyLimits(wall), KeyLimits(wall)
    row = key(concurrent_generations=1)
    lives(OTHER, wall.now)
    others.admit(row, owner=OTHER)
    wall.advance(29)
    with pytest.raises(RateLimitExceeded):
        mine.admit(row, owner=ME)
    wall.advance(1)
    mine.admit(row, owner=ME)


def test_a_dead_workers_request_counts_for_the_minute_all_the_same(wall: WallClock) -> None:
    row = key(requests_per_minute=1, concurrent_generations=1)
    KeyLimits(wall).admit(row, owner=OTHER)
    wall.advance(31)
    with pytest.raises(RateLimitExceeded, match="per minute"):
        KeyLimits(wall).admit(row, owner=ME)


def test_nothing_is_held_for_longer_than_a_generation_may_take(
    limits: KeyLimits, wall: WallClock, settings: Any
) -> None:
    settings.MESHNET_GENERATION_SECONDS = 100.0
    row = key(concurrent_generations=1)
    limits.admit(row, owner=ME)
    wall.advance(131)
    limits.admit(row, owner=ME)


# -- tokens per day


def test_tokens_of_prompts_and_answers_count_until_the_day_is_over(limits: KeyLimits, wall: WallClock) -> None:
    row = key(tokens_per_day=100)
    assert limits.admit(row, owner=ME).standing.tokens == Level(100, 100, 12 * 3600)
    add_usage(row.pk, day_of(NOON), requests=1, prompt_tokens=60, completion_tokens=39)
    assert limits.admit(row, owner=ME).standing.tokens == Level(100, 1, 12 * 3600)
    add_usage(row.pk, day_of(NOON), requests=1, prompt_tokens=1, completion_tokens=40)
    wall.now = datetime(2026, 3, 1, 23, 59, 30, 500_000, tzinfo=UTC)
    with pytest.raises(QuotaExceeded, match="its 100 tokens of today") as caught:
        limits.admit(row, owner=ME)
    assert (caught.value.code, caught.value.retry_after) == ("insufficient_quota", 30)
    assert caught.value.standing.tokens == Level(100, 0, 30)
    wall.now = datetime(2026, 3, 2, tzinfo=UTC)
    assert limits.admit(row, owner=ME).standing.tokens == Level(100, 100, 24 * 3600)


def test_a_limit_of_tokens_alone_writes_nothing(limits: KeyLimits) -> None:
    row = key(tokens_per_day=100)
    limits.give_back(limits.admit(row, owner=ME))
    assert KeyRequest.objects.count() == 0


# -- looking


def test_looking_counts_for_nothing(limits: KeyLimits, wall: WallClock) -> None:
    row = key(requests_per_minute=2, tokens_per_day=10)
    assert limits.standing(row) == Standing(Level(2, 2, 0), Level(10, 10, 12 * 3600))
    limits.admit(row, owner=ME)
    wall.advance(20)
    for _ in range(3):
        assert limits.standing(row).requests == Level(2, 1, 40)


# -- a database that fails


@contextmanager
def broken(method: str) -> Iterator[None]:
    """While it lasts, this method of every query fails."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(QuerySet, method, Mock(side_effect=DatabaseError("the disk is gone")))
        yield


@pytest.mark.parametrize("method", ["aggregate", "create"])
def test_a_request_that_cannot_be_counted_is_refused_and_may_come_again(limits: KeyLimits, method: str) -> None:
    row = key(requests_per_minute=1, concurrent_generations=1)
    with broken(method), pytest.raises(LimitsUnavailable) as caught:
        limits.admit(row, owner=ME)
    assert (caught.value.http_status, caught.value.retry_after) == (503, 1)
    limits.admit(row, owner=ME)


def test_looking_without_a_database_tells_nothing_and_fails_nothing(limits: KeyLimits) -> None:
    row = key(requests_per_minute=1)
    with broken("aggregate"):
        assert limits.standing(row) == Standing()


def test_f05_a_slot_that_could_not_be_given_back_is_found_by_the_next_request(limits: KeyLimits) -> None:
    row = key(concurrent_generations=1)
    admission = limits.admit(row, owner=ME)
    with broken("update"):
        limits.give_back(admission)
    assert KeyRequest.objects.get().running == 1
    limits.admit(row, owner=ME)
    assert sorted(KeyRequest.objects.values_list("running", flat=True)) == [0, 1]


def test_a_key_that_was_deleted_meanwhile_is_counted_as_it_was(limits: KeyLimits) -> None:
    row = key(tokens_per_day=5)
    APIKey.objects.all().delete()
    assert limits.admit(APIKey(pk=f"{row.prefix}.gone", tokens_per_day=5), owner=ME).standing.tokens is not None
