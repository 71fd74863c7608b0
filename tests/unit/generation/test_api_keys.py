from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from generation import api_keys
from generation.api_keys import KeyInfo, Limits
from generation.models import APIKey

pytestmark = pytest.mark.django_db


def test_a_new_key_is_usable_and_begins_with_its_prefix() -> None:
    info, key = api_keys.create("somebody")
    row = APIKey.objects.usable(key)
    assert row is not None and row.prefix == info.prefix == key.partition(".")[0]
    assert (info.name, info.state, info.expires) == ("somebody", "usable", None)


def test_an_expired_key_is_listed_as_such() -> None:
    _, key = api_keys.create("late", expires=timezone.now() - timedelta(seconds=1))
    assert APIKey.objects.usable(key) is None
    assert [info.state for info in api_keys.listed()] == ["expired"]


def test_a_revoked_key_is_refused_and_revoking_again_changes_nothing() -> None:
    info, key = api_keys.create("somebody")
    again, other = api_keys.create("another")
    assert api_keys.revoke(info.prefix)[1] is True
    told, changed = api_keys.revoke(info.prefix)
    assert (told.state, changed) == ("revoked", False)
    assert APIKey.objects.usable(key) is None
    assert APIKey.objects.usable(other) is not None
    assert {row.name: row.state for row in api_keys.listed()} == {"somebody": "revoked", "another": "usable"}
    assert again.state == "usable"


def test_a_prefix_that_nobody_has_is_an_error() -> None:
    with pytest.raises(APIKey.DoesNotExist):
        api_keys.revoke("nobody")


def test_what_is_told_of_a_key_is_not_the_key() -> None:
    _, key = api_keys.create("somebody")
    row = APIKey.objects.get()
    said = str([info.as_json() for info in api_keys.listed()])
    assert key.partition(".")[2] not in said
    assert row.hashed_key not in said


def test_limits_that_are_not_named_stay() -> None:
    info, _ = api_keys.create("app", limits=Limits(("a/one",), requests_per_minute=5, tokens_per_day=100))
    changed = api_keys.limit(info.prefix, requests_per_minute=None, concurrent_generations=3)
    assert changed.limits == Limits(("a/one",), None, 100, 3)
    with pytest.raises(APIKey.DoesNotExist):
        api_keys.limit("nobody", tokens_per_day=1)


def test_of_two_who_see_at_once_that_it_is_due_one_writes_the_use() -> None:
    api_keys.create("app")
    row, same = APIKey.objects.get(), APIKey.objects.get()
    api_keys.note_use(row)
    noted = APIKey.objects.get().last_used_at
    api_keys.note_use(same)  # has not seen the other's write
    assert noted is not None and APIKey.objects.get().last_used_at == noted
    assert KeyInfo.of(APIKey.objects.get()).as_json()["last_used_at"] == noted.isoformat()
