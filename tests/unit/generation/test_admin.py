from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib import admin
from django.test import Client
from django.utils import timezone
from rest_framework_api_key.models import APIKey as StockAPIKey

from generation.models import APIKey, Generation, HeadWorker
from tests.unit.generation.conftest import SignIn

A, B = "a" * 32, "b" * 32
GENERATIONS = "/admin/generation/generation/"
KEYS = "/admin/generation/apikey/"
WORKERS = "/admin/generation/headworker/"

pytestmark = pytest.mark.django_db


def text_of(response: Any) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", response.content.decode()))


def generation(session: str = A, **fields: Any) -> Generation:
    defaults: dict[str, Any] = {
        "owner": "boot",
        "model_name": "toy",
        "status": "done",
        "finish_reason": "stop",
        "started_at": timezone.now(),
    }
    return Generation.objects.create(session_id=session, **(defaults | fields))


# -- generations


def test_the_list_shows_what_an_operator_asks_first(sign_in: SignIn) -> None:
    generation(
        prompt_tokens=37,
        completion_tokens=412,
        time_to_first_token=0.4567,
        tokens_per_second=11.74,
        prefills=2,
        cache_misses=1,
        failovers=0,
        started_at=datetime(2026, 3, 1, 12, 0, 5, tzinfo=UTC),
    )
    text = text_of(sign_in("view_generation").get(GENERATIONS))
    assert f"{A[:10]}… 2026-03-01 12:00:05 done stop 37 412 0.46 s 11.7 2 1 0 toy" in text


def test_a_running_generation_has_gaps_and_no_zeros_in_its_speed(sign_in: SignIn) -> None:
    generation(status="running", finish_reason="", prompt_tokens=37)
    assert "running - 37 0 - - 0 0 0 toy" in text_of(sign_in("view_generation").get(GENERATIONS))


@pytest.mark.parametrize(
    "query",
    [
        {"status__exact": "failed"},
        {"finish_reason__exact": "length"},
        {"model_name": "other"},
        {"session_id": B},
        {"q": B},
        {"started_at__gte": "2000-01-01 00:00:00+00:00", "started_at__lt": "2000-02-01 00:00:00+00:00"},
        {"started_at__year": 2000, "started_at__month": 1, "started_at__day": 5},
    ],
)
def test_it_can_be_filtered(sign_in: SignIn, query: dict[str, Any]) -> None:
    generation(A)
    generation(
        B,
        status="failed",
        finish_reason="length",
        model_name="other",
        started_at=timezone.now().replace(year=2000, month=1, day=5),
    )
    response = sign_in("view_generation").get(GENERATIONS, query)
    assert response.status_code == 200
    html = response.content.decode()
    assert (f'title="{A}"' in html, f'title="{B}"' in html) == (False, True)


def test_the_number_of_queries_does_not_grow_with_the_generations(
    sign_in: SignIn, django_assert_max_num_queries: Any
) -> None:
    client = sign_in("view_generation")
    key, _ = APIKey.objects.create_key(name="app")
    counts = []
    for number in (1, 30):
        for index in range(number):
            generation(f"{number}-{index}".ljust(32, "x"), api_key=key)
        with django_assert_max_num_queries(30) as queries:
            client.get(GENERATIONS)
        counts.append(len(queries))
    assert counts[0] == counts[1]


def test_the_detail_shows_the_route(sign_in: SignIn) -> None:
    started = timezone.now()
    row = generation(
        started_at=started,
        finished_at=started + timedelta(seconds=3.5),
        route=[
            {"node": "http://one:1", "start": 0, "end": 15},
            {"node": "http://<two>:2", "start": 15, "end": 30},
        ],
    )
    response = sign_in("view_generation").get(f"{GENERATIONS}{row.pk}/change/")
    text = text_of(response)
    assert "Layers Node 0:15 http://one:1 15:30 http://&lt;two&gt;:2" in text
    assert "3.50 s" in text
    assert "None" not in text


@pytest.mark.parametrize("route", [[], {}, ["x"], [{"node": "http://one:1"}]])
def test_an_odd_route_does_not_break_the_detail(sign_in: SignIn, route: Any) -> None:
    row = generation(route=route)
    assert sign_in("view_generation").get(f"{GENERATIONS}{row.pk}/change/").status_code == 200


def test_only_a_running_generation_links_to_its_live_session(sign_in: SignIn) -> None:
    running, done = generation(A, status="running"), generation(B)
    client = sign_in("view_generation")
    link = "/admin/nodes/kvsession/?session_id="
    assert f'href="{link}{A}"' in client.get(f"{GENERATIONS}{running.pk}/change/").content.decode()
    assert link not in client.get(f"{GENERATIONS}{done.pk}/change/").content.decode()


def test_nobody_writes_generations_or_workers_by_hand(sign_in: SignIn) -> None:
    row = generation()
    now = timezone.now()
    worker = HeadWorker.objects.create(boot_id="b", hostname="h", pid=1, started_at=now, beat_at=now)
    client = sign_in(superuser=True)
    for base, pk in ((GENERATIONS, row.pk), (WORKERS, worker.pk)):
        assert client.get(f"{base}add/").status_code == 403
        assert client.post(f"{base}{pk}/change/", {"status": "failed"}).status_code == 403
        assert client.post(f"{base}{pk}/delete/", {"post": "yes"}).status_code == 403
    row.refresh_from_db()
    assert row.status == "done"


@pytest.mark.parametrize("url", [GENERATIONS, KEYS, WORKERS])
def test_without_rights_nothing_is_shown(sign_in: SignIn, url: str) -> None:
    assert Client().get(url).url.startswith("/admin/login/")
    assert sign_in().get(url).status_code == 403


def test_the_totals_are_those_of_what_is_filtered(sign_in: SignIn) -> None:
    for index, seconds in enumerate((1.0, 2.0, 4.0)):
        generation(f"a{index}", prompt_tokens=1000, completion_tokens=10, time_to_first_token=seconds)
    generation("b", status="failed", finish_reason="", prompt_tokens=5, tokens_per_second=7.25)
    client = sign_in("view_generation")

    def totals(query: str) -> str:
        found = re.search(r'id="generation-totals".*?</dl>', client.get(GENERATIONS + query).content.decode(), re.S)
        assert found is not None
        words = re.findall(r"<dd>(.*?)</dd>", found[0])
        return " | ".join(words)

    assert totals("") == "4 | 3,005 | 30 | 2.00 s | 3.80 s | 7.2 | 7.2"
    assert totals("?status__exact=done") == "3 | 3,000 | 30 | 2.00 s | 3.80 s | - | -"
    assert totals("?q=nowhere") == "0 | 0 | 0 | - | - | - | -"


def test_the_detail_shows_the_time_line_and_where_the_time_went(sign_in: SignIn) -> None:
    started = timezone.now()
    row = generation(
        started_at=started,
        finished_at=started + timedelta(seconds=4),
        route=[{"node": "http://one:1", "start": 0, "end": 15}],
        hops=[{"node": "http://one:1", "steps": 4, "compute_ms": 30.0, "queue_ms": 1.0, "network_ms": 9.0}],
        timeline=[
            {"at": 0.0, "event": "prefill", "detail": "37 tokens"},
            {"at": 1.0, "event": "first token", "detail": ""},
            {"at": 2.0, "event": "cache miss", "detail": "unknown_session on <b>http://one:1"},
        ],
    )
    response = sign_in("view_generation").get(f"{GENERATIONS}{row.pk}/change/")
    text, html = text_of(response), response.content.decode()
    assert "0.000 s prefill 37 tokens 1.000 s first token - 2.000 s cache miss unknown_session on" in text
    assert "http://one:1 0:15 4 30.0 ms 1.0 ms 9.0 ms 10.0 ms" in text
    assert 'class="gen-decode" x="25.00%" y="0" width="75.00%"' in html
    assert "<b>http" not in html
    assert "Cancel this generation" not in html


def test_the_list_is_filtered_by_api_key_and_no_page_holds_the_hash_of_a_key(sign_in: SignIn) -> None:
    mine, _ = APIKey.objects.create_key(name="mine")
    other, _ = APIKey.objects.create_key(name="other")
    row = generation(A, api_key=mine)
    generation(B, api_key=other)
    client = sign_in("view_generation", "view_apikey", "change_apikey")
    filtered = client.get(GENERATIONS, {"key": mine.prefix})
    html = filtered.content.decode()
    assert (f'title="{A}"' in html, f'title="{B}"' in html) == (True, False)
    detail = client.get(f"{GENERATIONS}{row.pk}/change/")
    assert f"mine ({mine.prefix})" in text_of(detail)
    for page in (filtered, detail):
        assert not any(key.hashed_key.split("$")[-1] in page.content.decode() for key in (mine, other))


def test_a_running_one_says_that_its_time_line_comes_at_the_end(sign_in: SignIn) -> None:
    row = generation(status="running", finish_reason="")
    assert "still running" in text_of(sign_in("view_generation").get(f"{GENERATIONS}{row.pk}/change/"))


# -- API keys


def test_a_new_key_is_shown_once_and_works(sign_in: SignIn) -> None:
    client = sign_in("add_apikey", "view_apikey", "change_apikey")
    form = {"name": "my app", "expiry_date_0": "", "expiry_date_1": ""}
    page = client.post(f"{KEYS}add/", form, follow=True)
    key = re.search(r"The API key for my app is: (\S+?)\. ", text_of(page))
    assert key is not None
    row = APIKey.objects.get()
    assert APIKey.objects.usable(key[1]) == row
    again = client.get(KEYS)
    assert row.prefix in text_of(again)
    detail = client.get(f"{KEYS}{row.pk}/change/")
    for response in (again, detail):
        assert key[1] not in response.content.decode()
    assert row.hashed_key not in text_of(detail)


def test_a_key_can_be_revoked_for_good(sign_in: SignIn) -> None:
    row, key = APIKey.objects.create_key(name="my app")
    client = sign_in("view_apikey", "change_apikey")
    form = {"name": "my app", "revoked": "on", "expiry_date_0": "", "expiry_date_1": ""}
    assert client.post(f"{KEYS}{row.pk}/change/", form).status_code == 302
    assert APIKey.objects.usable(key) is None
    client.post(f"{KEYS}{row.pk}/change/", {"name": "my app", "expiry_date_0": "", "expiry_date_1": ""})
    assert APIKey.objects.usable(key) is None


def test_the_library_s_own_keys_which_open_nothing_are_not_offered() -> None:
    assert not admin.site.is_registered(StockAPIKey)
    assert admin.site.is_registered(APIKey)


# -- head workers


def test_the_list_of_workers_tells_the_living_from_the_silent(sign_in: SignIn) -> None:
    now = timezone.now()
    HeadWorker.objects.create(boot_id="alive", hostname="h", pid=1, started_at=now, beat_at=now)
    HeadWorker.objects.create(
        boot_id="silent", hostname="h", pid=2, started_at=now, beat_at=now - timedelta(seconds=31)
    )
    html = sign_in("view_headworker").get(WORKERS).content.decode()
    assert (html.count("icon-yes"), html.count("icon-no")) == (1, 1)
    assert html.index("icon-yes") < html.index("icon-no")
