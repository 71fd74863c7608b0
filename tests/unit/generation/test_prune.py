from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from generation.models import Generation
from generation.prune import Pruned, prune

pytestmark = pytest.mark.django_db

NOW = timezone.now()
MONTH_AGO = NOW - timedelta(days=30)


def make(ended: float | None, *, took: float = 0.1, status: str = "done") -> Generation:
    """A generation that ended so many days ago (None: it has no end) after so many days."""
    finished = None if ended is None else NOW - timedelta(days=ended)
    return Generation.objects.create(
        session_id=f"session-{Generation.objects.count()}",
        owner="w",
        model_name="toy",
        status=status,
        started_at=(finished or NOW - timedelta(days=90)) - timedelta(days=took),
        finished_at=finished,
    )


def left() -> set[Any]:
    return set(Generation.objects.values_list("pk", flat=True))


def test_it_goes_by_the_end() -> None:
    old, young, long_one = make(31), make(29), make(29, took=5)
    assert prune(MONTH_AGO) == Pruned(1, 0)
    assert left() == {young.pk, long_one.pk}
    assert old.pk not in left()


@pytest.mark.parametrize("status", ["done", "failed", "cancelled", "interrupted"])
def test_however_it_ended(status: str) -> None:
    make(40, status=status)
    assert prune(MONTH_AGO).rows == 1


def test_one_that_runs_stays_however_old() -> None:
    running = make(None, status="running")
    assert prune(MONTH_AGO) == Pruned(0, 1)
    assert left() == {running.pk}


def test_one_without_an_end_that_does_not_run_goes_by_its_beginning() -> None:
    make(None, status="failed")
    assert prune(MONTH_AGO).rows == 1


def test_a_dry_run_says_the_same_and_deletes_nothing() -> None:
    for _ in range(3):
        make(40)
    make(None, status="running")
    assert prune(MONTH_AGO, dry_run=True) == Pruned(3, 1)
    assert len(left()) == 4


def test_it_deletes_in_batches(django_assert_max_num_queries: Any) -> None:
    """Each batch is a statement of its own: running answers write their rows in between."""
    for _ in range(7):
        make(40)
    with django_assert_max_num_queries(1 + 2 * 3 + 1 + 3) as queries:
        assert prune(MONTH_AGO, batch_rows=3).rows == 7
    assert sum("DELETE" in query["sql"] for query in queries.captured_queries) == 3
    assert left() == set()
