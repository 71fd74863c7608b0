from __future__ import annotations

import threading
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import DatabaseError
from django.db.models import QuerySet

from generation.cancel import CancelWatch, request_cancel
from generation.models import Generation

pytestmark = pytest.mark.django_db

A, B, C = "a" * 32, "b" * 32, "c" * 32


def row(session: str, *, owner: str = "me", **fields: Any) -> Generation:
    return Generation.objects.create(
        session_id=session, owner=owner, model_name="toy", started_at=datetime(2026, 3, 1, tzinfo=UTC), **fields
    )


class FakeAnswer:
    def __init__(self, session: str) -> None:
        self.job = SimpleNamespace(session_id=session)
        self.cancelled = threading.Event()

    def cancel(self) -> None:
        self.cancelled.set()


def watch(*answers: FakeAnswer) -> CancelWatch:
    return CancelWatch("me", lambda: list(answers), interval=0.01)  # type: ignore[arg-type]


def test_only_running_generations_are_flagged_and_each_once() -> None:
    row(A)
    row(B, status="done")
    row(C)
    assert [found.session_id for found in request_cancel(Generation.objects.exclude(session_id=C))] == [A]
    assert dict(Generation.objects.values_list("session_id", "cancel_requested")) == {A: True, B: False, C: False}
    assert request_cancel(Generation.objects.filter(session_id=A)) == []


def test_one_that_ends_at_this_moment_is_not_flagged(monkeypatch: pytest.MonkeyPatch) -> None:
    row(A)
    update = QuerySet.update

    def end_first(rows: Any, **changes: Any) -> int:
        update(Generation.objects.all(), status="done")
        return update(rows, **changes)

    monkeypatch.setattr(QuerySet, "update", end_first)
    assert request_cancel(Generation.objects.all()) == []
    assert not Generation.objects.get().cancel_requested


def test_the_watch_ends_what_is_flagged_and_nothing_else() -> None:
    row(A, cancel_requested=True)
    row(B)
    flagged, other = FakeAnswer(A), FakeAnswer(B)
    watch(flagged, other).look()
    assert (flagged.cancelled.is_set(), other.cancelled.is_set()) == (True, False)


def test_flags_of_other_workers_and_of_ended_rows_are_not_read() -> None:
    row(A, owner="other", cancel_requested=True)
    row(B, status="done", cancel_requested=True)
    answers = [FakeAnswer(A), FakeAnswer(B)]
    watch(*answers).look()
    assert not any(answer.cancelled.is_set() for answer in answers)


def test_a_round_costs_one_query_however_many_answers_run_and_none_without(django_assert_num_queries: Any) -> None:
    for index in range(20):
        row(f"{index}".ljust(32, "x"))
    with django_assert_num_queries(0):
        watch().look()
    with django_assert_num_queries(1):
        watch(*(FakeAnswer(f"{index}".ljust(32, "x")) for index in range(20))).look()


def test_a_database_that_fails_is_said_once_and_asked_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    row(A, cancel_requested=True)
    answer = FakeAnswer(A)
    watching = watch(answer)
    with monkeypatch.context() as broken:

        def fail(*_: Any, **__: Any) -> Any:
            raise DatabaseError("database is locked")

        broken.setattr("django.db.models.sql.compiler.SQLCompiler.execute_sql", fail)
        watching.look()
        watching.look()
    assert caplog.text.count("database is locked") == 1
    assert not answer.cancelled.is_set()
    watching.look()
    assert answer.cancelled.is_set()


@pytest.mark.django_db(transaction=True)
def test_its_thread_looks_again_and_again_until_it_is_stopped() -> None:
    generation = row(A)
    answer = FakeAnswer(A)
    looks = threading.Semaphore(0)

    def running() -> Any:
        looks.release()
        return [answer]

    watching = CancelWatch("me", running, interval=0.01)
    watching.start()
    assert looks.acquire(timeout=5)
    assert not answer.cancelled.is_set()
    request_cancel(Generation.objects.filter(pk=generation.pk))
    assert answer.cancelled.wait(5)
    watching.stop()
    while looks.acquire(blocking=False):
        pass
    assert not looks.acquire(timeout=0.1), "it still looks"
