from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from generation.key_usage import add_usage, day_of, days_of_use, first_of, tokens_used, totals_of_use
from generation.models import APIKey, KeyUsage

pytestmark = pytest.mark.django_db

DAY = date(2026, 3, 1)


def key(name: str = "app") -> APIKey:
    row: APIKey = APIKey.objects.create_key(name=name)[0]
    return row


def use(row: APIKey, day: date = DAY, requests: int = 1, prompt: int = 10, completion: int = 5) -> None:
    add_usage(row.pk, day, requests=requests, prompt_tokens=prompt, completion_tokens=completion)


def test_a_day_of_a_key_is_one_row_that_is_added_to() -> None:
    row = key()
    for _ in range(3):
        use(row)
    use(row, requests=0, prompt=0)
    usage = KeyUsage.objects.get()
    assert (usage.api_key, usage.day) == (row, DAY)
    assert (usage.requests, usage.prompt_tokens, usage.completion_tokens) == (3, 30, 20)


def test_after_the_first_of_the_day_it_is_one_query() -> None:
    row = key()
    use(row)
    with CaptureQueriesContext(connection) as queries:
        use(row)
    assert len(queries) == 1


def test_two_who_make_the_days_row_at_once_both_add_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    row = key()
    made = KeyUsage.objects.bulk_create

    def late(rows: list[KeyUsage], **options: bool) -> list[KeyUsage]:
        KeyUsage.objects.create(api_key=row, day=DAY, requests=7)  # the other one was faster
        return made(rows, **options)

    monkeypatch.setattr(KeyUsage.objects, "bulk_create", late)
    use(row)
    assert KeyUsage.objects.get().requests == 8


def test_a_key_that_was_deleted_uses_nothing() -> None:
    row = key()
    pk = row.pk
    row.delete()
    add_usage(pk, DAY, requests=1, prompt_tokens=1, completion_tokens=1)
    assert not KeyUsage.objects.exists()


def test_a_day_is_that_of_utc() -> None:
    assert day_of(datetime(2026, 3, 1, 23, 59, tzinfo=UTC)) == DAY
    assert day_of(datetime(2026, 3, 2, 0, 59, tzinfo=timezone(timedelta(hours=1)))) == DAY
    assert first_of(1, datetime(2026, 3, 1, 12, tzinfo=UTC)) == DAY
    assert first_of(30, datetime(2026, 3, 30, 12, tzinfo=UTC)) == DAY


def test_tokens_used_are_those_of_the_key_and_the_day() -> None:
    mine, other = key(), key()
    assert tokens_used(mine.pk, DAY) == 0
    use(mine)
    use(mine, day=DAY + timedelta(days=1))
    use(other)
    assert tokens_used(mine.pk, DAY) == 15


def test_days_are_listed_newest_first_with_the_keys_names() -> None:
    a, b = key("a"), key("b")
    use(b)
    use(a)
    use(a, day=DAY + timedelta(days=1), prompt=1)
    assert [(day.day, day.name, day.prompt_tokens) for day in days_of_use()] == [
        (DAY + timedelta(days=1), "a", 1),
        (DAY, "a", 10),
        (DAY, "b", 10),
    ]
    assert [day.name for day in days_of_use(prefix=b.prefix)] == ["b"]
    assert [day.day for day in days_of_use(since=DAY + timedelta(days=1))] == [DAY + timedelta(days=1)]
    with pytest.raises(APIKey.DoesNotExist):
        days_of_use(prefix="nobody")


def test_totals_add_up_what_is_there() -> None:
    assert totals_of_use(KeyUsage.objects.all()).tokens == 0
    row = key()
    use(row, requests=1000, prompt=2000, completion=500)
    use(row, day=DAY + timedelta(days=1))
    totals = totals_of_use(KeyUsage.objects.all())
    assert (totals.requests, totals.tokens) == (1001, 2515)
    assert totals.in_words == {
        "requests": "1,001",
        "prompt_tokens": "2,010",
        "completion_tokens": "505",
        "tokens": "2,515",
    }
