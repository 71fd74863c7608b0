from __future__ import annotations

import statistics
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from generation.models import Generation
from generation.totals import Spread, percentile, totals_of
from tests.unit.generation.test_admin import generation


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=50))
def test_percentiles_are_those_of_the_standard_library(values: list[float]) -> None:
    cuts = statistics.quantiles(values, n=20, method="inclusive")
    assert percentile(values, 0.5) == pytest.approx(statistics.median(values))
    assert percentile(values, 0.95) == pytest.approx(cuts[18])


def test_one_value_is_its_own_percentile() -> None:
    assert percentile([3.0], 0.95) == 3.0


@pytest.mark.django_db
def test_of_more_rows_than_are_looked_at_the_newest_give_the_speeds() -> None:
    now = timezone.now()
    for age, seconds in enumerate((1.0, 2.0, 3.0, 100.0)):
        generation(f"{age}", started_at=now - timedelta(days=age), time_to_first_token=seconds, prompt_tokens=10)
    totals = totals_of(Generation.objects.all(), speed_rows=3)
    assert (totals.requests, totals.prompt_tokens) == (4, 40)
    assert totals.first_token == Spread(2.0, pytest.approx(2.9))
    assert totals.is_cut
    assert totals.in_words["note"] == "Medians and percentiles are those of the newest 3 of these generations."
    assert not totals_of(Generation.objects.all(), speed_rows=4).is_cut


@pytest.mark.django_db
def test_rows_without_a_speed_count_as_requests_only() -> None:
    generation("1", tokens_per_second=None)
    generation("2", tokens_per_second=5.0)
    totals = totals_of(Generation.objects.all())
    assert totals.requests == 2
    assert totals.tokens_per_second == Spread(5.0, 5.0)
    assert totals.first_token == Spread(None, None)


@pytest.mark.django_db
def test_two_queries_do(django_assert_num_queries: Any) -> None:
    for index in range(20):
        generation(f"{index}")
    with django_assert_num_queries(2):
        totals_of(Generation.objects.all())
