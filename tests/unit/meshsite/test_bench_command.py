from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from meshsite.bench import run as bench_run
from meshsite.bench.contenders import ContenderFailed
from meshsite.bench.random_model import NAME
from meshsite.bench.scale import MEASURES, QUICK, Scale
from meshsite.management.commands import bench as command
from nodes.errors import ModelUnavailable


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, settings: Any, tmp_path: Path) -> list[Any]:
    """What the command asks to run; nothing is measured."""
    found: list[Any] = []
    settings.MESHNET_VAR_DIR = tmp_path
    settings.MESHNET_MODEL = "the-model"
    monkeypatch.setattr(bench_run, "run", lambda wanted, say, show: found.append(wanted) or tmp_path / "x.json")
    monkeypatch.setattr(command, "random_model", lambda var_dir: tmp_path)
    return found


def bench(*arguments: str) -> str:
    out = io.StringIO()
    call_command("bench", *arguments, stdout=out, stderr=io.StringIO())
    return out.getvalue()


def test_all_of_it_on_both_models_by_default(asked: list[Any]) -> None:
    assert "x.json" in bench()
    (wanted,) = asked
    assert wanted.models == ["the-model", NAME]
    assert wanted.dtypes == ["float32", "bfloat16"]
    assert wanted.measures == list(MEASURES)
    assert wanted.scale == Scale()
    assert (wanted.threads, wanted.cores) == (0, [])


def test_the_quick_form_takes_the_model_of_the_settings_alone(asked: list[Any]) -> None:
    bench("--quick")
    (wanted,) = asked
    assert (wanted.models, wanted.dtypes, wanted.scale) == (["the-model"], ["float32"], QUICK)


def test_options_reach_the_run(asked: list[Any]) -> None:
    bench(
        *("--only", "agg8_vs_generate", "wire", "--model", "a", "b", "--dtype", "bfloat16", "--threads", "2"),
        *("--cores", "1,3", "--rounds", "2", "--tokens", "7", "--quick"),
    )
    (wanted,) = asked
    assert wanted.models == ["a", "b"]
    assert wanted.dtypes == ["bfloat16"]
    assert wanted.measures == ["wire", "sessions"]
    assert (wanted.threads, wanted.cores) == (2, [1, 3])
    assert (wanted.scale.rounds, wanted.scale.tokens, wanted.scale.prompts) == (2, 7, QUICK.prompts)


def test_stateless_is_the_measure_with_and_without_a_cache(asked: list[Any]) -> None:
    bench("--stateless")
    assert asked[0].measures == ["flatness"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--only", "speed"], "'speed' is neither a measure"),
        (["--cores", "a"], "--cores takes numbers"),
        (["--threads", "-1"], "must not be negative"),
        (["--rounds", "-1"], "must not be negative"),
        (["--tokens", "1"], "--tokens be 2 or more"),
    ],
)
def test_wrong_options_are_told_and_nothing_runs(asked: list[Any], arguments: list[str], words: str) -> None:
    with pytest.raises(CommandError, match=words):
        bench(*arguments)
    assert asked == []


@pytest.mark.parametrize("error", [ModelUnavailable("no such model"), ContenderFailed("no such model")])
def test_what_cannot_be_measured_ends_the_command_in_a_sentence(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(bench_run, "run", fail)
    with pytest.raises(CommandError, match="no such model"):
        bench("--quick")
