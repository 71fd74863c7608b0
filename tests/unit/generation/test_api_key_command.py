from __future__ import annotations

import json
import re
from datetime import timedelta
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from generation.key_usage import add_usage, day_of
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
    assert re.split(r" {2,}", header) == [
        "PREFIX", "NAME", "STATE", "CREATED", "EXPIRES", "LAST USED", "REQUESTS/MIN", "TOKENS/DAY", "AT ONCE", "MODELS",
    ]  # fmt: skip
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


@pytest.mark.parametrize(
    "arguments",
    [
        ["revoke", "nobody"],
        ["revoke", "nobody.and-its-secret"],
        ["limit", "nobody", "--tokens-per-day", "5"],
        ["usage", "--key", "nobody"],
    ],
)
def test_an_unknown_prefix_is_code_1(arguments: list[str]) -> None:
    with pytest.raises(CommandError, match="No API key has the prefix 'nobody'") as caught:
        run(*arguments)
    assert caught.value.returncode == 1


# -- limits


LIMITS = ("--requests-per-minute", "60", "--tokens-per-day", "5000", "--concurrent-generations", "2")


def test_a_key_is_made_with_limits_and_says_so() -> None:
    made = json.loads(run("create", "--name", "app", "--json", *LIMITS, "--models", "a/one, b/two"))
    assert made["limits"] == {
        "models": ["a/one", "b/two"],
        "requests_per_minute": 60,
        "tokens_per_day": 5000,
        "concurrent_generations": 2,
    }
    assert APIKey.objects.get().model_ids == ["a/one", "b/two"]
    assert re.search(r"never +60 +5000 +2 +a/one,b/two$", run("list"), re.MULTILINE)
    assert "Limits: 60 requests per minute, only a/one." in run(
        "create", "--name", "x", "--requests-per-minute", "60", "--models", "a/one"
    )
    assert "It has no limits." in run("create", "--name", "free")


@pytest.mark.parametrize(
    "arguments",
    [
        ["create", "--name", "x", "--tokens-per-day=-5"],
        ["create", "--name", "x", "--concurrent-generations", "99999999999"],
        ["create", "--name", "x", "--models", ","],
        ["limit", "--tokens-per-day", "5"],
        ["usage", "--days", "0"],
        ["usage", "--days", "000000000036501"],
    ],
)
def test_numbers_that_are_no_limits_and_no_days_are_refused(arguments: list[str]) -> None:
    with pytest.raises(CommandError):
        run(*arguments)
    assert not APIKey.objects.exists()


def test_limits_are_changed_one_by_one() -> None:
    prefix = create("app", *LIMITS)["prefix"]
    said = run("limit", prefix, "--requests-per-minute", "5", "--tokens-per-day", "none")
    assert said == f"The key {prefix} (app): Limits: 5 requests per minute, 2 generations at once.\n"
    run("limit", prefix, "--models", "a/one")
    changed = json.loads(run("limit", prefix, "--concurrent-generations", "none", "--json"))
    assert changed["limits"] == {
        "models": ["a/one"],
        "requests_per_minute": 5,
        "tokens_per_day": None,
        "concurrent_generations": None,
    }
    run("limit", prefix, "--models", "none", "--requests-per-minute", "none")
    assert not APIKey.objects.get().has_limits and APIKey.objects.get().model_ids == []


# -- usage


def test_usage_is_shown_by_day_and_key() -> None:
    one, two = create("one")["prefix"], create("two")["prefix"]
    today = day_of(timezone.now())
    for prefix, days_ago in ((one, 0), (two, 0), (one, 29), (one, 30)):
        row = APIKey.objects.get(prefix=prefix)
        add_usage(row.pk, today - timedelta(days=days_ago), requests=2, prompt_tokens=70, completion_tokens=5)
    listed = json.loads(run("usage", "--json"))["usage"]
    assert [(day["prefix"], day["day"]) for day in listed] == [
        (one, today.isoformat()),
        (two, today.isoformat()),
        (one, (today - timedelta(days=29)).isoformat()),
    ]
    assert listed[0] == {
        "day": today.isoformat(),
        "prefix": one,
        "name": "one",
        "requests": 2,
        "prompt_tokens": 70,
        "completion_tokens": 5,
    }
    assert len(json.loads(run("usage", "--json", "--days", "31", "--key", one))["usage"]) == 3
    header, line = run("usage", "--days", "1", "--key", two).splitlines()
    assert re.split(r" {2,}", header) == ["DAY", "PREFIX", "NAME", "REQUESTS", "PROMPT TOKENS", "ANSWER TOKENS"]
    assert line.split() == [today.isoformat(), two, "two", "2", "70", "5"]


def test_no_usage_is_said_to_be_none() -> None:
    create()
    assert run("usage") == "No key was used in 30 days.\n"
    assert json.loads(run("usage", "--json")) == {"usage": []}


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
        ["create", "--name", "x", "--requests-per-minute", "0"],
        ["limit", "abcdefgh"],
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
