from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.test import Client

from generation.models import Generation
from tests.unit.generation.conftest import SignIn
from tests.unit.generation.test_admin import GENERATIONS, A, B, generation, text_of

CANCEL = f"{GENERATIONS}cancel/"
RIGHTS = ("view_generation", "cancel_generation")
ACTION = {"action": "cancel_selected", "index": "0"}

pytestmark = pytest.mark.django_db


def running(session: str = A, **fields: Any) -> Generation:
    return generation(session, status="running", finish_reason="", **fields)


def flagged() -> set[str]:
    return set(Generation.objects.filter(cancel_requested=True).values_list("session_id", flat=True))


def test_the_list_asks_first_and_says_what_will_happen(sign_in: SignIn) -> None:
    rows = [running(A), generation(B)]
    client = sign_in(*RIGHTS)
    page = client.post(GENERATIONS, {**ACTION, "_selected_action": [row.pk for row in rows]})
    text = text_of(page)
    assert "1 running generation will be told to end; 1 of the selected is not running and stays as it is." in text
    assert A in text and B not in text
    assert flagged() == set(), "asking changes nothing"
    fields = dict(re.findall(r'type="hidden" name="(generation|confirmed)" value="(\w+)"', page.content.decode()))
    done = client.post(CANCEL, fields, follow=True)
    assert flagged() == {A}
    assert "1 generation was told to end" in text_of(done)
    assert done.redirect_chain[-1][0] == f"{GENERATIONS}{rows[0].pk}/change/"
    assert "(told to end)" in text_of(done)


def test_each_cancelled_generation_is_logged(sign_in: SignIn) -> None:
    rows = [running(A), running(B), generation("c" * 32)]
    sign_in(*RIGHTS).post(CANCEL, {"generation": [row.pk for row in rows], "confirmed": "yes"})
    entries = LogEntry.objects.order_by("object_id")
    assert [(entry.object_id, entry.get_change_message()) for entry in entries] == [
        (str(row.pk), "Cancelled on request.") for row in rows[:2]
    ]
    assert {entry.user for entry in entries} == {User.objects.get()}


def test_the_page_of_a_running_one_has_a_button_which_asks_first(sign_in: SignIn) -> None:
    row = running()
    client = sign_in(*RIGHTS)
    page = client.get(f"{GENERATIONS}{row.pk}/change/").content.decode()
    assert re.search(rf'<form method="post" action="{CANCEL}".*?value="{row.pk}"', page, re.S)
    assert "1 running generation will be told to end." in text_of(client.post(CANCEL, {"generation": row.pk}))
    assert flagged() == set()


def test_what_has_ended_has_no_button_and_is_left_alone(sign_in: SignIn) -> None:
    row = generation()
    client = sign_in(*RIGHTS)
    assert "Cancel this generation" not in client.get(f"{GENERATIONS}{row.pk}/change/").content.decode()
    for fields in ({"generation": row.pk}, {"generation": row.pk, "confirmed": "yes"}):
        assert client.post(CANCEL, fields).url == f"{GENERATIONS}{row.pk}/change/"
    row.refresh_from_db()
    assert (row.status, row.cancel_requested) == ("done", False)
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize("numbers", [[], ["x"], ["-1"], ["9" * 40], ["²"], ["999999"]])
def test_numbers_that_name_nothing_do_nothing(sign_in: SignIn, numbers: list[str]) -> None:
    running()
    response = sign_in(*RIGHTS).post(CANCEL, {"generation": numbers, "confirmed": "yes"})
    assert (response.status_code, response.url) == (302, GENERATIONS)
    assert flagged() == set()


def test_e07_a_link_changes_nothing(sign_in: SignIn) -> None:
    row = running()
    assert sign_in(*RIGHTS).get(f"{CANCEL}?generation={row.pk}&confirmed=yes").status_code == 405
    assert flagged() == set()


def test_e07_a_form_of_another_site_changes_nothing(sign_in: SignIn) -> None:
    row = running()
    strict = Client(enforce_csrf_checks=True)
    sign_in(*RIGHTS)
    strict.force_login(User.objects.get())
    assert strict.post(CANCEL, {"generation": row.pk, "confirmed": "yes"}).status_code == 403
    assert flagged() == set()


def test_without_the_right_there_is_no_button_no_action_and_no_way(sign_in: SignIn) -> None:
    row = running()
    client = sign_in("view_generation", "evict_kvsession")
    for url in (GENERATIONS, f"{GENERATIONS}{row.pk}/change/"):
        page = client.get(url).content.decode()
        assert "cancel_selected" not in page and "Cancel this generation" not in page
    assert client.post(CANCEL, {"generation": row.pk, "confirmed": "yes"}).status_code == 403
    client.post(GENERATIONS, {**ACTION, "_selected_action": [row.pk]})
    assert Client().post(CANCEL, {"generation": row.pk, "confirmed": "yes"}).url.startswith("/admin/login/")
    assert flagged() == set()


def test_the_right_to_cancel_alone_does_not_show_generations(sign_in: SignIn) -> None:
    row = running()
    client = sign_in("cancel_generation")
    assert client.post(CANCEL, {"generation": row.pk, "confirmed": "yes"}).url == "/admin/"
    assert flagged() == {A}
    assert client.get(GENERATIONS).status_code == 403
