from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError

from generation.models import Generation
from tests.unit.generation.test_admin import A, B, generation

pytestmark = pytest.mark.django_db


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("cancel_generation", *arguments, stdout=out)
    return out.getvalue()


def test_a_session_id_or_the_number_of_the_row_names_it() -> None:
    generation(A, status="running")
    row = generation(B, status="running")
    assert run(A) == f"Generation {A} was told to end.\n"
    assert run(str(row.pk)) == f"Generation {B} was told to end.\n"
    assert list(Generation.objects.values_list("cancel_requested", flat=True)) == [True, True]


def test_to_ask_twice_is_no_error() -> None:
    generation(A, status="running")
    run(A)
    assert run(A) == f"Generation {A} was told to end, as it was before.\n"


def test_json_says_what_it_found() -> None:
    row = generation(A, status="running")
    assert json.loads(run(A, "--json")) == {
        "generation": A,
        "id": row.pk,
        "session_id": A,
        "status": "running",
        "cancel_requested": True,
        "asked": True,
    }


@pytest.mark.parametrize("name", ["nobody", "123456", "9" * 30, "²"])
def test_an_unknown_name_is_an_error(name: str) -> None:
    generation(A, status="running")
    with pytest.raises(CommandError, match=f"There is no generation {name}") as raised:
        run(name)
    assert raised.value.returncode == 1
    assert not Generation.objects.get().cancel_requested


def test_one_that_has_ended_is_an_error() -> None:
    generation(A, status="done")
    with pytest.raises(CommandError, match="is not running; it is done"):
        run(A)


def test_a_database_that_cannot_be_read_is_said_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise DatabaseError("no such table")

    monkeypatch.setattr(Generation.objects, "filter", fail)
    with pytest.raises(CommandError, match="no such table"):
        run(A)
