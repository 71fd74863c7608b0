from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from generation.key_usage import add_usage, day_of
from generation.models import APIKey
from tests.unit.generation.conftest import SignIn

KEYS = "/admin/generation/apikey/"
USAGE = "/admin/generation/keyusage/"

pytestmark = pytest.mark.django_db


def text_of(response: Any) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", response.content.decode()))


def form(**fields: str) -> dict[str, str]:
    empty = dict.fromkeys(
        ("expiry_date_0", "expiry_date_1", "allowed_models", "requests_per_minute", "tokens_per_day"), ""
    )
    return {"name": "my app", **empty, "concurrent_generations": "", **fields}


def key(**fields: Any) -> APIKey:
    row: APIKey = APIKey.objects.create_key(name=fields.pop("name", "my app"), **fields)[0]
    return row


def use(row: APIKey, days_ago: int, tokens: int) -> None:
    day = day_of(timezone.now() - timedelta(days=days_ago))
    add_usage(row.pk, day, requests=1, prompt_tokens=tokens, completion_tokens=1)


# -- keys and their limits


def test_a_key_is_made_with_limits(sign_in: SignIn) -> None:
    client = sign_in("add_apikey", "view_apikey")
    sent = form(
        allowed_models="one/model\r\n  two/model  \r\n\r\n",
        requests_per_minute="60",
        tokens_per_day="100000",
        concurrent_generations="4",
    )
    assert client.post(f"{KEYS}add/", sent).status_code == 302
    row = APIKey.objects.get()
    assert (row.requests_per_minute, row.tokens_per_day, row.concurrent_generations) == (60, 100_000, 4)
    assert row.model_ids == ["one/model", "two/model"]
    assert "60 requests/min, 100,000 tokens/day, 4 at once, 2 models" in text_of(client.get(KEYS))


def test_empty_limits_are_no_limits(sign_in: SignIn) -> None:
    client = sign_in("add_apikey", "view_apikey", "change_apikey")
    client.post(f"{KEYS}add/", form())
    row = APIKey.objects.get()
    assert (row.has_limits, row.model_ids) == (False, [])
    client.post(f"{KEYS}{row.pk}/change/", form(tokens_per_day="5"))
    assert APIKey.objects.get().tokens_per_day == 5
    client.post(f"{KEYS}{row.pk}/change/", form())
    assert not APIKey.objects.get().has_limits


@pytest.mark.parametrize("field", ["requests_per_minute", "tokens_per_day", "concurrent_generations"])
def test_a_limit_of_nothing_is_refused_since_that_is_what_revoking_is_for(sign_in: SignIn, field: str) -> None:
    page = sign_in("add_apikey").post(f"{KEYS}add/", form(**{field: "0"}))
    assert "greater than or equal to 1" in text_of(page)
    assert not APIKey.objects.exists()


def test_a_key_tells_when_it_was_used_last_and_leads_to_what_it_used(sign_in: SignIn) -> None:
    row = key(last_used_at=timezone.now())
    client = sign_in("view_apikey", "change_apikey", "view_keyusage")
    page = client.get(f"{KEYS}{row.pk}/change/")
    assert f"{USAGE}?key={row.prefix}" in page.content.decode()
    client.post(f"{KEYS}{row.pk}/change/", form(last_used_at_0="2000-01-01", last_used_at_1="00:00:00"))
    assert APIKey.objects.get().last_used_at == row.last_used_at


# -- usage


def test_usage_is_a_row_per_key_and_day_with_totals(sign_in: SignIn) -> None:
    row = key()
    use(row, 0, 1000)
    use(row, 1, 500)
    page = sign_in("view_keyusage").get(USAGE)
    text = text_of(page)
    assert "Requests 2 Prompt tokens 1,500 Answer tokens 2 Tokens 1,502" in text
    assert text.count(row.prefix) >= 2


def test_usage_is_filtered_by_key_and_day_and_the_totals_follow(sign_in: SignIn) -> None:
    mine, other = key(name="mine"), key(name="other")
    use(mine, 0, 1000)
    use(mine, 40, 50)
    use(other, 0, 7)
    client = sign_in("view_keyusage")
    assert "Tokens 1,052" in text_of(client.get(USAGE, {"key": mine.prefix}))
    today = day_of(timezone.now()).isoformat()
    assert "Tokens 1,001" in text_of(client.get(USAGE, {"key": mine.prefix, "day__gte": today}))
    for page in (client.get(USAGE), client.get(USAGE, {"key": mine.prefix})):
        assert not any(row.hashed_key.split("$")[-1] in page.content.decode() for row in (mine, other))


def test_nobody_writes_usage_by_hand(sign_in: SignIn) -> None:
    row = key()
    use(row, 0, 1)
    client = sign_in(superuser=True)
    number = row.usage.get().pk
    for path in ("add/", f"{number}/delete/"):
        assert client.post(f"{USAGE}{path}", {"post": "yes"}).status_code == 403
    assert client.post(f"{USAGE}{number}/change/", {"requests": 0}).status_code == 403
    assert row.usage.get().requests == 1


def test_without_the_right_usage_is_not_shown(sign_in: SignIn) -> None:
    assert sign_in("view_apikey").get(USAGE).status_code == 403
