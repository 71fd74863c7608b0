from __future__ import annotations

import json
from datetime import timedelta
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from generation.models import APIKey
from tests.unit.nodes.manage import manage

pytestmark = pytest.mark.django_db


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("api_key", *arguments, stdout=out)
    return out.getvalue()


def create(name: str = "somebody", *more: str) -> dict[str, str]:
    made: dict[str, str] = json.loads(run("create", "--name", name, "--json", *more))
    return made


def test_create_prints_the_key_once_on_a_line_of_its_own() -> None:
    key, *rest = run("create", "--name", "somebody").splitlines()
    row = APIKey.objects.usable(key)
    assert row is not None and row.name == "somebody"
    assert "shown once" in " ".join(rest) and "does not expire" in " ".join(rest)
    assert key not in run("list") + run("list", "--json")


def test_create_with_json_has_the_key_too() -> None:
    made = create()
    row = APIKey.objects.usable(made["key"])
    assert row is not None
    assert (made["prefix"], made["name"], made["state"]) == (row.prefix, "somebody", "usable")


def test_a_key_may_expire() -> None:
    expires = parse_datetime(create("short", "--expires", "30d")["expires_at"])
    assert expires is not None
    assert abs(expires - timezone.now() - timedelta(days=30)) < timedelta(minutes=1)
    assert "It expires at " in run("create", "--name", "short", "--expires", "1h")


def test_list_is_an_aligned_table() -> None:
    assert run("list") == "There are no API keys.\n"
    first, second = create("a"), create("a much longer name", "--expires", "1h")
    run("revoke", first["prefix"])
    header, *lines = run("list").splitlines()
    assert header.split() == ["PREFIX", "NAME", "STATE", "CREATED", "EXPIRES"]
    column = header.index("STATE")
    assert {line.split()[0]: line[column:].split()[0] for line in lines} == {
        first["prefix"]: "revoked",
        second["prefix"]: "usable",
    }
    assert {key["prefix"] for key in json.loads(run("list", "--json"))["keys"]} == {first["prefix"], second["prefix"]}


def test_revoke_refuses_the_key_and_twice_is_no_error() -> None:
    made = create()
    assert run("revoke", made["prefix"]) == f"The key {made['prefix']} (somebody) is refused from now on.\n"
    assert APIKey.objects.usable(made["key"]) is None
    assert "was revoked already; nothing was changed" in run("revoke", made["prefix"])
    assert json.loads(run("revoke", made["prefix"], "--json"))["changed"] is False


def test_who_pastes_the_whole_key_does_not_see_it_again() -> None:
    made = create()
    said = run("revoke", made["key"]) + run("revoke", made["key"], "--json")
    assert APIKey.objects.usable(made["key"]) is None
    assert made["key"].partition(".")[2] not in said
    with pytest.raises(CommandError) as caught:
        run("revoke", "unknown0.of-a-secret-kind")
    assert "secret-kind" not in str(caught.value)


def test_an_unknown_prefix_is_code_1() -> None:
    with pytest.raises(CommandError, match="No API key has the prefix 'nobody'") as caught:
        run("revoke", "nobody")
    assert caught.value.returncode == 1


def test_it_works_from_a_shell(tmp_path: Path) -> None:
    assert manage("migrate", "--verbosity=0", var_dir=tmp_path).returncode == 0
    made = manage("api_key", "create", "--name", "shell", "--json", var_dir=tmp_path)
    assert (made.returncode, made.stderr) == (0, "")
    prefix = json.loads(made.stdout)["prefix"]
    assert manage("api_key", "revoke", prefix, var_dir=tmp_path).returncode == 0
    assert manage("api_key", "revoke", prefix, var_dir=tmp_path).returncode == 0
    unknown = manage("api_key", "revoke", "nobody", var_dir=tmp_path)
    assert unknown.returncode == 1
    assert "Traceback" not in unknown.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["make"],
        ["create"],
        ["create", "--name", " "],
        ["create", "--name", "x" * 51],
        ["create", "--name", "x", "--expires", "soon"],
        ["create", "--name", "x", "--expires", "999999999d"],
        ["revoke"],
    ],
)
def test_wrong_usage_is_code_2(arguments: list[str], tmp_path: Path) -> None:
    done = manage("api_key", *arguments, var_dir=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr


def test_a_database_that_is_not_there_is_code_1_and_advice(tmp_path: Path) -> None:
    done = manage("api_key", "list", var_dir=tmp_path)
    assert done.returncode == 1
    assert "manage.py migrate" in done.stderr
    assert "Traceback" not in done.stderr


def test_its_exit_codes_are_in_its_help(tmp_path: Path) -> None:
    text = " ".join(manage("api_key", "--help", var_dir=tmp_path).stdout.split())
    assert "Exit codes: 0 done, also when a key was revoked already; 1 no key has that prefix" in text
