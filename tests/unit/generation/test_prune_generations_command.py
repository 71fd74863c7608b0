from __future__ import annotations

import json
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from generation.models import Generation
from tests.unit.nodes.manage import manage


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("prune_generations", *arguments, stdout=out)
    return out.getvalue()


@pytest.fixture
def rows(db: Any) -> None:
    for number, (days, status) in enumerate([(40, "done"), (40, "failed"), (40, "running"), (1, "done")]):
        moment = timezone.now() - timedelta(days=days)
        Generation.objects.create(
            session_id=f"session-{number}",
            owner="w",
            model_name="toy",
            status=status,
            started_at=moment,
            finished_at=None if status == "running" else moment,
        )


@pytest.mark.usefixtures("rows")
def test_it_deletes_what_ended_long_ago_and_says_so() -> None:
    text = run("--older-than", "30d")
    assert text.startswith("2 generations that ended before ")
    assert text.endswith(" UTC deleted. 1 generation of that age still running: left alone.\n")
    assert set(Generation.objects.values_list("status", flat=True)) == {"running", "done"}
    assert run("--older-than", "30d").startswith("0 generations")


@pytest.mark.usefixtures("rows")
def test_a_dry_run_deletes_nothing() -> None:
    assert " would be deleted." in run("--older-than", "30d", "--dry-run")
    assert Generation.objects.count() == 4


@pytest.mark.usefixtures("rows")
def test_it_prints_json() -> None:
    report = json.loads(run("--older-than", "30d", "--json"))
    assert (report["deleted"], report["running_left"], report["dry_run"]) == (2, 1, False)
    assert report["before"][:10] == (timezone.now() - timedelta(days=30)).date().isoformat()


@pytest.mark.parametrize("arguments", [[], ["--older-than", "soon"], ["--older-than", "999999999d"]])
def test_without_a_time_that_can_be_read_it_does_nothing(arguments: list[str], tmp_path: Path) -> None:
    done = manage("prune_generations", *arguments, var_dir=tmp_path)
    assert done.returncode == 2
    assert "--older-than" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_database_that_is_not_there_is_code_1_and_advice(tmp_path: Path) -> None:
    done = manage("prune_generations", "--older-than", "1d", var_dir=tmp_path)
    assert done.returncode == 1
    assert "manage.py migrate" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_database_error_is_a_command_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from django.db import OperationalError

    def locked(*args: Any, **options: Any) -> None:
        raise OperationalError("database is locked")

    monkeypatch.setattr("generation.management.commands.prune_generations.prune", locked)
    with pytest.raises(CommandError, match="database is locked"):
        run("--older-than", "1d")


def test_its_exit_codes_are_in_its_help(tmp_path: Path) -> None:
    text = " ".join(manage("prune_generations", "--help", var_dir=tmp_path).stdout.split())
    assert "Exit codes: 0 done, also when there was nothing to delete; 1 the database could not be used" in text
