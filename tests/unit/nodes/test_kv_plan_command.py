from __future__ import annotations

import json
import shutil
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from tests.unit.nodes.manage import manage


@pytest.fixture
def folder(toy_folder: Any, tmp_path: Path) -> Path:
    """The configuration alone: nothing that could be loaded is there."""
    made = tmp_path / "config-only"
    made.mkdir()
    shutil.copy(toy_folder("llama") / "config.json", made)
    return made


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("kv_plan", *arguments, stdout=out)
    return out.getvalue()


def test_it_prints_a_line_for_each_shard(folder: Path) -> None:
    text = run("--model", str(folder), "--shards", "2", "--context", "512", "--memory", "8MiB")
    header, first, second = text.split("\n\n")[0].splitlines()
    assert header.split() == ["LAYERS", "WEIGHTS", "PER", "TOKEN", "PER", "SESSION", "SESSIONS"]
    assert first.split()[0] == "0:2" and second.split()[0] == "2:4"
    assert first.split()[3:7] == ["512", "B", "256", "KiB"]
    # 8 MiB less 242 KiB of weights, by 256 KiB a session.
    assert first.split()[-1] == "31"
    assert "Sessions of 512 tokens in float32, beside the weights in 8.0 MiB." in text
    assert "The head keeps 80.0 KiB of embeddings." in text


def test_it_takes_layers_or_all_of_them(folder: Path) -> None:
    assert run("--model", str(folder), "--layers", "1:3", "--context", "9").splitlines()[1].split()[0] == "1:3"
    assert run("--model", str(folder), "--context", "9").splitlines()[1].split()[0] == "0:4"
    assert run("--model", str(folder), "--context", "9").splitlines()[1].split()[-1] == "-"


def test_it_prints_json(folder: Path) -> None:
    data = json.loads(
        run("--model", str(folder), "--context", "10", "--memory", "1GB", "--dtype", "bfloat16", "--json")
    )
    assert (data["context"], data["memory"], data["dtype"]) == (10, 10**9, "bfloat16")
    assert data["head_bytes"] == 320 * 64 * 2
    (shard,) = data["shards"]
    assert shard["layers"] == "0:4"
    assert shard["kv_bytes_per_session"] == 10 * shard["kv_bytes_per_token"] == 10 * 4 * 2 * 2 * 16 * 2
    assert shard["sessions"] == (10**9 - shard["weight_bytes"]) // shard["kv_bytes_per_session"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--layers", "2:5"), "layers 0:4"),
        (("--shards", "5"), "1 to 4 shards, not 5"),
        (("--context", "513"), "512 tokens at most, not 513"),
        (("--model", "no-such-model"), "There is no model 'no-such-model'"),
    ],
)
def test_what_cannot_be_planned_is_said(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(CommandError, match=message) as caught:
        run("--model", str(folder), "--context", "10", *arguments)
    assert caught.value.returncode == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--context", "10", "--memory", "8G"), "'8G' is not a size: write bytes, or 8GiB, 8GB, 8192MiB"),
        (("--context", "0"), "'0' is not a whole number above 0"),
        (("--context", "10", "--layers", "3"), "'3' is not start:end"),
        (("--context", "10", "--layers", "0:2", "--shards", "2"), "not allowed with"),
        ((), "required: --context"),
    ],
)
def test_wrong_usage_is_said(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(CommandError, match=message):
        run("--model", str(folder), *arguments)


def test_an_untested_type_needs_the_setting(folder: Path, settings: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "stablelm"}))
    with pytest.raises(CommandError, match="MESHNET_ALLOW_UNTESTED_MODELS"):
        run("--model", str(folder), "--context", "10")
    settings.MESHNET_ALLOW_UNTESTED_MODELS = True
    assert "0:4" in run("--model", str(folder), "--context", "10")


OPENED = """
import os, sys
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "meshsite.settings")
from django.core.management import execute_from_command_line
execute_from_command_line(["manage.py", "kv_plan", "--model", {folder!r}, "--context", "100", "--memory", "1GiB"])
print("opened", *sorted({{os.path.basename(path) for path in opened if path.startswith({folder!r})}}))
"""


def test_it_opens_the_configuration_and_no_weights(toy_folder: Any, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(toy_folder("llama"), folder)
    # Nothing but their names is left of the weights.
    (folder / "model.safetensors").write_bytes(b"not weights at all")
    done = manage(var_dir=tmp_path / "var", code=OPENED.format(folder=str(folder)))
    assert done.returncode == 0, done.stderr
    assert "0:4" in done.stdout
    assert done.stdout.splitlines()[-1] == "opened config.json"


def test_its_exit_codes_are_in_its_help_and_true(folder: Path, tmp_path: Path) -> None:
    text = " ".join(manage("kv_plan", "--help", var_dir=tmp_path).stdout.split())
    assert "Exit codes: 0 planned; 1 the model or its layers cannot be; 2 wrong usage." in text
    refused = manage("kv_plan", "--model", str(folder), "--context", "10", "--layers", "3:9", var_dir=tmp_path)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "0:4" in refused.stderr and "Traceback" not in refused.stderr
    assert manage("kv_plan", "--context", "ten", var_dir=tmp_path).returncode == 2
