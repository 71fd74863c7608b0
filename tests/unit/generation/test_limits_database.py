from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import Mock

import pytest
from django.db import DatabaseError
from django.db.models.query import QuerySet

from generation.errors import LimitsUnavailable, RateLimitExceeded
from generation.limits import Standing
from generation.limits_database import DatabaseKeyLimits
from generation.models import APIKey, KeyRequest
from tests.unit.generation.counting import ME, key
from tests.unit.generation.wall_clock import WallClock

pytestmark = pytest.mark.django_db


@pytest.fixture
def wall() -> WallClock:
    return WallClock()


@pytest.fixture
def limits(wall: WallClock) -> DatabaseKeyLimits:
    return DatabaseKeyLimits(wall)


def test_old_rows_go_when_the_key_is_used_again(limits: DatabaseKeyLimits, wall: WallClock) -> None:
    row = key(requests_per_minute=9)
    for _ in range(5):
        limits.admit(row, owner=ME)
    wall.advance(60)
    limits.admit(row, owner=ME)
    assert KeyRequest.objects.count() == 1


def test_the_row_counts_as_it_is_now_and_not_as_the_request_found_it(limits: DatabaseKeyLimits) -> None:
    row = key(requests_per_minute=5)
    limits.admit(row, owner=ME)
    APIKey.objects.update(requests_per_minute=1)
    with pytest.raises(RateLimitExceeded):
        limits.admit(row, owner=ME)


def test_a_limit_of_tokens_alone_writes_nothing(limits: DatabaseKeyLimits) -> None:
    row = key(tokens_per_day=100)
    limits.give_back(limits.admit(row, owner=ME))
    assert KeyRequest.objects.count() == 0


# -- a database that fails


@contextmanager
def broken(method: str) -> Iterator[None]:
    """While it lasts, this method of every query fails."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(QuerySet, method, Mock(side_effect=DatabaseError("the disk is gone")))
        yield


@pytest.mark.parametrize("method", ["aggregate", "create"])
def test_a_request_that_cannot_be_counted_is_refused_and_may_come_again(limits: DatabaseKeyLimits, method: str) -> None:
    row = key(requests_per_minute=1, concurrent_generations=1)
    with broken(method), pytest.raises(LimitsUnavailable) as caught:
        limits.admit(row, owner=ME)
    assert (caught.value.http_status, caught.value.retry_after) == (503, 1)
    limits.admit(row, owner=ME)


def test_looking_without_a_database_tells_nothing_and_fails_nothing(limits: DatabaseKeyLimits) -> None:
    row = key(requests_per_minute=1)
    with broken("aggregate"):
        assert limits.standing(row) == Standing()


def test_f05_a_slot_that_could_not_be_given_back_is_found_by_the_next_request(limits: DatabaseKeyLimits) -> None:
    row = key(concurrent_generations=1)
    admission = limits.admit(row, owner=ME)
    with broken("update"):
        limits.give_back(admission)
    assert KeyRequest.objects.get().running == 1
    limits.admit(row, owner=ME)
    assert sorted(KeyRequest.objects.values_list("running", flat=True)) == [0, 1]
