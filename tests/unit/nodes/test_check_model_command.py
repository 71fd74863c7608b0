from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from nodes import model_check
from nodes.layers import LayerRange
from nodes.shard import ModelShard
from tests.unit.nodes.manage import manage


class Output:
    def __init__(self) -> None:
        self.out, self.err = StringIO(), StringIO()

    def run(self, folder: Path, *arguments: str) -> str:
        call_command("check_model", str(folder), *arguments, stdout=self.out, stderr=self.err)
        return self.out.getvalue()


@pytest.fixture
def output() -> Output:
    return Output()


def test_it_prints_a_table_of_the_default_splits(toy_folder: Any, output: Output) -> None:
    lines = output.run(toy_folder("llama")).splitlines()
    assert lines[0].split() == [
        "SPLIT", "SHARD", "CACHED", "STATELESS", "MAX", "DIFFERENCE", "BYTES", "PER", "TOKEN", "VERDICT",
    ]  # fmt: skip
    rows = [line.split() for line in lines[1:]]
    assert [row[:2] for row in rows] == [
        ["0:2,2:4", "0:2"], ["0:2,2:4", "2:4"], ["0:2,2:4", "all"],
        ["0:2,2:3,3:4", "0:2"], ["0:2,2:3,3:4", "2:3"], ["0:2,2:3,3:4", "3:4"], ["0:2,2:3,3:4", "all"],
        ["0:3,3:4", "0:3"], ["0:3,3:4", "3:4"], ["0:3,3:4", "all"],
    ]  # fmt: skip
    assert rows[0][2:] == ["equal", "equal", "-", "512", "proved"]
    assert rows[2][2:4] == ["equal", "equal"] and float(rows[2][4]) < 1e-4 and rows[2][5:] == ["1024", "equal"]
    assert lines[1].index("equal") == lines[0].index("CACHED")


def test_it_says_what_it_does_beside_the_table(toy_folder: Any, output: Output) -> None:
    output.run(toy_folder("llama"), "--splits", "0:4", "0:1,1:4")
    said = output.err.getvalue().splitlines()
    assert said == [f"Loading {toy_folder('llama').name} whole …", "Split 1 of 2: 0:4", "Split 2 of 2: 0:1 | 1:4"]


def test_it_can_check_every_cut(toy_folder: Any, output: Output) -> None:
    rows = [line.split() for line in output.run(toy_folder("llama"), "--all-splits").splitlines()[1:]]
    assert [row[0] for row in rows if row[1] == "all"] == ["0:1,1:4", "0:2,2:4", "0:3,3:4"]


def test_every_cut_of_a_large_model_is_refused_before_anything_is_loaded(
    toy_folder: Any, output: Output, monkeypatch: Any
) -> None:
    monkeypatch.setattr(model_check, "ALL_SPLITS_MOST_BYTES", 1000)
    with pytest.raises(CommandError, match=r"3 times.*1000 B at most. Name some --splits") as caught:
        output.run(toy_folder("llama"), "--all-splits")
    assert caught.value.returncode == 1
    assert output.err.getvalue() == ""


def test_it_prints_json(toy_folder: Any, output: Output) -> None:
    data = json.loads(output.run(toy_folder("llama"), "--splits", "0:2,2:4", "--json"))
    assert (data["dtype"], data["good"]) == ("float32", True)
    shard, _, chain = data["findings"]
    assert shard == {
        "split": "0:2,2:4", "shard": "0:2", "cached": True, "stateless": True, "max_difference": None,
        "bytes_per_token": 512, "verdict": "proved", "good": True,
    }  # fmt: skip
    assert chain["shard"] is None and 0 <= chain["max_difference"] < 1e-4


def test_a_difference_is_exit_code_1_and_the_table_is_printed(
    toy_folder: Any, output: Output, monkeypatch: Any
) -> None:
    load = ModelShard.load

    def spoiled(folder: Path, layers: LayerRange, **options: Any) -> ModelShard:
        shard = load(folder, layers, **options)
        if layers.start == 2:
            logits = shard.logits
            shard.logits = lambda *args: logits(*args) * float("nan")  # type: ignore[method-assign]
        return shard

    monkeypatch.setattr(ModelShard, "load", spoiled)
    with pytest.raises(CommandError, match="1 of 3 checks failed") as caught:
        output.run(toy_folder("llama"), "--splits", "0:2,2:4")
    assert caught.value.returncode == 1
    assert output.out.getvalue().splitlines()[-1].split()[2:] == ["DIFFERS", "DIFFERS", "nan", "1024", "differs"]
    output.out.truncate(output.out.seek(0))
    with pytest.raises(CommandError):
        output.run(toy_folder("llama"), "--splits", "0:2,2:4", "--json")
    data = json.loads(output.out.getvalue(), parse_constant=pytest.fail)
    assert not data["good"] and data["findings"][-1]["max_difference"] is None


@pytest.mark.parametrize("split", ["0:2", "0:2,3:4", "everything"])
def test_a_split_that_is_none_is_wrong_usage(toy_folder: Any, output: Output, split: str) -> None:
    with pytest.raises(CommandError, match=r"without gap or overlap|start:end") as caught:
        output.run(toy_folder("llama"), "--splits", split)
    assert caught.value.returncode == 2


def test_an_untested_type_needs_the_setting(tmp_path: Path, output: Output, settings: Any) -> None:
    import transformers as t

    from tests import toys
    from tests.unit.nodes.test_families import save

    folder = save(t.StableLmConfig(**toys._COMMON), tmp_path)
    with pytest.raises(CommandError, match="MESHNET_ALLOW_UNTESTED_MODELS"):
        output.run(folder)
    settings.MESHNET_ALLOW_UNTESTED_MODELS = True
    assert "differs" not in output.run(folder, "--splits", "0:2,2:4")


def test_from_a_shell_the_codes_are_true_and_the_output_is_json_alone(toy_folder: Any, tmp_path: Path) -> None:
    text = " ".join(manage("check_model", "--help", var_dir=tmp_path).stdout.split())
    assert (
        "Exit codes: 0 everything is equal; 1 something differs, is refused or cannot be loaded; 2 wrong usage; "
        "130 interrupted." in text
    )
    done = manage("check_model", str(toy_folder("llama")), "--splits", "0:1,1:4", "--json", var_dir=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["good"]
    gone = manage("check_model", "no-such-model", var_dir=tmp_path)
    assert (gone.returncode, gone.stdout) == (1, "")
    assert "There is no model 'no-such-model'" in gone.stderr and "Traceback" not in gone.stderr
