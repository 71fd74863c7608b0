from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from django.apps import apps
from django.db import DatabaseError
from django.db.models.query import QuerySet

from generation import record as records
from generation.job import Progress
from generation.models import APIKey, Generation, KeyUsage
from generation.record import Record

# The end of a row closes the connection: nothing of a test may hang on one transaction.
pytestmark = pytest.mark.django_db(transaction=True)

RUNTIME: Any = SimpleNamespace(boot_id="boot", model="toy", settings=SimpleNamespace(fingerprint="sha256:toy"))


def job(session: str = "s" * 32) -> Any:
    return SimpleNamespace(session_id=session, prompt_ids=[1, 2, 3, 4])


def done(completion: int = 5, *, prefills: int = 1) -> Progress:
    return Progress(completion_tokens=completion, prefills=prefills, finish_reason="stop" if prefills else "")


def usage() -> list[tuple[int, int, int]]:
    return list(KeyUsage.objects.values_list("requests", "prompt_tokens", "completion_tokens"))


@pytest.fixture
def key() -> APIKey:
    row: APIKey = APIKey.objects.create_key(name="app")[0]
    return row


def begin(key: APIKey | None, *, choice: int = 0, counts_prompt: bool = True) -> Record:
    return Record.begin(
        RUNTIME, job("abcdefgh"[choice] * 32), api_key=key, streamed=False, choice=choice, counts_prompt=counts_prompt
    )


def test_what_a_generation_used_is_added_when_it_ends(key: APIKey) -> None:
    record = begin(key)
    assert usage() == []
    record.end(done(), None, cancelled=False)
    assert usage() == [(1, 4, 5)]
    assert Generation.objects.get().status == Generation.Status.DONE


def test_two_answers_to_each_of_two_prompts_count_one_request_and_two_prompts(key: APIKey) -> None:
    for choice in range(4):
        begin(key, choice=choice, counts_prompt=choice % 2 == 0).end(done(), None, cancelled=False)
    assert usage() == [(1, 8, 20)]


def test_what_was_made_before_it_failed_or_was_cancelled_counts(key: APIKey) -> None:
    begin(key).end(done(2), None, cancelled=True)
    assert usage() == [(1, 4, 2)]


def test_a_prompt_that_no_node_was_sent_counts_no_tokens(key: APIKey) -> None:
    begin(key).end(done(0, prefills=0), None, cancelled=True)
    assert usage() == [(1, 0, 0)]


def test_without_a_key_nothing_is_counted() -> None:
    begin(None).end(done(), None, cancelled=False)
    assert usage() == []


def test_f05_a_row_that_could_not_be_begun_leaves_the_usage(key: APIKey, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(QuerySet, "create", Mock(side_effect=DatabaseError("locked")))
        record = begin(key)
    record.end(done(), None, cancelled=False)
    assert usage() == [(1, 4, 5)]


def test_f05_usage_that_cannot_be_written_leaves_the_row_and_breaks_nothing(
    key: APIKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "add_usage", Mock(side_effect=DatabaseError("locked")))
    begin(key).end(done(), None, cancelled=False)
    assert (usage(), Generation.objects.get().status) == ([], Generation.Status.DONE)


def test_f05_an_end_that_cannot_be_written_leaves_the_usage(key: APIKey, monkeypatch: pytest.MonkeyPatch) -> None:
    record = begin(key)
    with monkeypatch.context() as patch:
        patch.setattr(records.Generation.objects, "filter", Mock(side_effect=DatabaseError("locked")))
        record.end(done(), None, cancelled=False)
    assert (usage(), Generation.objects.get().status) == ([(1, 4, 5)], Generation.Status.RUNNING)


def test_who_counts_a_keys_day_is_told_after_the_database_was(key: APIKey, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    limits = SimpleNamespace(used=lambda key, day: told.append((key.pk, usage())))
    monkeypatch.setattr(apps.get_app_config("generation"), "limits", limits)
    begin(key).end(done(), None, cancelled=False)
    assert told == [], "a key without such a limit"
    key.tokens_per_day = 100
    begin(key, choice=1).end(done(), None, cancelled=False)
    assert told == [(key.pk, [(1, 8, 10)])]
    monkeypatch.setattr(records, "add_usage", Mock(side_effect=DatabaseError("the disk is gone")))
    begin(key, choice=2).end(done(), None, cancelled=False)
    assert len(told) == 1, "nothing was added"
