from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

from nodes.errors import ModelUnavailable
from nodes.model_files import DEFAULT_MODEL, find_model, layer_count, locate

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def make_folder(folder: Path, **config: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"num_hidden_layers": 4, **config}))
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


@pytest.fixture
def var(tmp_path: Path) -> Path:
    return tmp_path / "var"


def test_the_default_models_name_finds_its_folder_in_var(var: Path) -> None:
    folder = make_folder(var / "models" / DEFAULT_MODEL)
    found = find_model(DEFAULT_MODEL, var)
    assert (found.name, found.folder) == (DEFAULT_MODEL, folder.resolve())
    assert found.fingerprint.startswith("sha256:")


def test_a_missing_default_model_says_how_to_fetch_it(var: Path) -> None:
    with pytest.raises(ModelUnavailable, match=r"manage.py fetch_model"):
        find_model(DEFAULT_MODEL, var)


def test_a_folder_is_found_by_its_path_and_known_by_its_name(tmp_path: Path, var: Path) -> None:
    folder = make_folder(tmp_path / "my model")
    found = find_model(str(folder), var)
    assert (found.name, found.folder) == ("my model", folder)


def test_a_relative_path_becomes_absolute(tmp_path: Path, var: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_folder(tmp_path / "here")
    monkeypatch.chdir(tmp_path)
    assert locate("./here", var) == ("here", tmp_path / "here", None)


def test_a_folder_goes_before_a_hub_id_of_the_same_name(
    tmp_path: Path, var: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_folder(tmp_path / "owner" / "name")
    monkeypatch.chdir(tmp_path)
    assert locate("owner/name", var)[1] == tmp_path / "owner" / "name"


@pytest.mark.parametrize("model", ["", " ", "nothing", "/nowhere", "../nowhere", "a/b/c", "a b/c"])
def test_what_is_no_model_is_refused_with_the_ways_to_name_one(var: Path, model: str) -> None:
    with pytest.raises(ModelUnavailable, match="neither SmolLM2-135M-Instruct, nor a folder, nor a hub id"):
        find_model(model, var)


@pytest.mark.parametrize("model", [".", ".."])
def test_dots_do_not_name_the_folder_of_models(var: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make_folder(var / "models" / "x")
    monkeypatch.chdir(var.parent)
    with pytest.raises(ModelUnavailable, match=r"config\.json cannot be read"):
        find_model(model, var)


def test_a_folder_without_a_config_is_refused(tmp_path: Path, var: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelUnavailable, match=r"config\.json cannot be read"):
        find_model(str(tmp_path / "empty"), var)


def test_weights_in_other_formats_are_refused_with_the_way_out(tmp_path: Path, var: Path) -> None:
    folder = make_folder(tmp_path / "old")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelUnavailable, match="save_pretrained"):
        find_model(str(folder), var)


@pytest.mark.parametrize("config", [{}, {"num_hidden_layers": None, "text_config": {"num_hidden_layers": 4}}])
def test_the_number_of_layers_is_in_the_config_or_in_its_text_part(tmp_path: Path, config: dict[str, Any]) -> None:
    assert layer_count(make_folder(tmp_path / "m", **config)) == 4


@pytest.mark.parametrize("value", [None, 0, "12", -1])
def test_a_config_without_a_number_of_layers_is_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(ModelUnavailable, match="num_hidden_layers"):
        layer_count(make_folder(tmp_path / "m", num_hidden_layers=value))


@pytest.mark.parametrize("text", ["{", "[]", "7"])
def test_a_damaged_config_is_refused(tmp_path: Path, text: str) -> None:
    folder = make_folder(tmp_path / "m")
    (folder / "config.json").write_text(text)
    with pytest.raises(ModelUnavailable, match=r"config\.json"):
        layer_count(folder)


class Hub:
    """In place of the hub's library. `cached` is the local snapshot, `remote` what a download brings."""

    def __init__(self, tmp_path: Path) -> None:
        self.snapshot = tmp_path / "cache" / "snapshots" / COMMIT
        self.cached = False
        self.error: Exception | None = None
        self.brings: list[str] = []
        self.downloads: list[dict[str, Any]] = []

    def snapshot_download(self, hub_id: str, *, local_files_only: bool = False, **options: Any) -> str:
        if local_files_only:
            if not self.cached:
                raise LocalEntryNotFoundError("not here")
            return str(self.snapshot)
        self.downloads.append(options)
        if self.error is not None:
            raise self.error
        if not self.snapshot.exists():
            make_folder(self.snapshot)
        for name in self.brings:
            (self.snapshot / name).write_bytes(b"weights")
        return str(self.snapshot)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub = Hub(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.snapshot_download)
    return hub


def test_a_hub_models_fingerprint_is_its_id_and_commit(hub: Hub, var: Path) -> None:
    found = find_model("owner/name", var)
    assert (found.name, found.folder) == ("owner/name", hub.snapshot)
    assert found.fingerprint == f"owner/name@{COMMIT}"


def test_only_configs_tokenizers_and_safetensors_are_downloaded(hub: Hub, var: Path) -> None:
    find_model("owner/name", var)
    [options] = hub.downloads
    names = ["config.json", "model-00001-of-00002.safetensors", "tokenizer.json", "chat_template.jinja"]
    assert list(huggingface_hub.utils.filter_repo_objects(
        [*names, "modeling_evil.py", "pytorch_model.bin", "README.md", "consolidated.safetensors", "onnx/config.json"],
        allow_patterns=options["allow_patterns"],
        ignore_patterns=options["ignore_patterns"],
    )) == names  # fmt: skip


def test_a_local_copy_is_used_without_asking_the_hub(hub: Hub, var: Path) -> None:
    make_folder(hub.snapshot)
    hub.cached = True
    assert find_model("owner/name", var).folder == hub.snapshot
    assert hub.downloads == []


PART = "model-00001-of-00002.safetensors"


def lacks_weights(snapshot: Path) -> None:
    make_folder(snapshot)
    (snapshot / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": PART}}))


def has_no_weights(snapshot: Path) -> None:
    make_folder(snapshot)
    (snapshot / "model.safetensors").unlink()


@pytest.mark.parametrize("interrupted", [lacks_weights, has_no_weights])
def test_a_local_copy_that_lacks_weights_is_completed_from_the_same_commit(
    hub: Hub, var: Path, interrupted: Callable[[Path], None]
) -> None:
    interrupted(hub.snapshot)
    hub.cached = True
    with pytest.raises(ModelUnavailable, match=r"manage.py fetch_model owner/name"):
        find_model("owner/name", var, download=False)
    hub.brings = [PART]
    find_model("owner/name", var)
    assert [options["revision"] for options in hub.downloads] == [COMMIT]


def test_a_local_copy_that_cannot_be_completed_is_refused(hub: Hub, var: Path) -> None:
    lacks_weights(hub.snapshot)
    hub.cached = True
    with pytest.raises(ModelUnavailable, match=f"cannot be reached \\({PART} is missing here\\)"):
        find_model("owner/name", var)


def test_without_downloads_a_missing_hub_model_says_how_to_fetch_it(hub: Hub, var: Path) -> None:
    with pytest.raises(ModelUnavailable, match=r"manage.py fetch_model owner/name"):
        find_model("owner/name", var, download=False)
    assert hub.downloads == []


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (LocalEntryNotFoundError("no route\nto host"), "cannot be reached \\(no route\\)"),
        (TimeoutError(), "cannot be reached \\(TimeoutError\\)"),
        (HFValidationError("too long"), "is not a hub id"),
    ],
)
def test_what_the_hub_answers_is_told(hub: Hub, var: Path, error: Exception, words: str) -> None:
    hub.error = error
    with pytest.raises(ModelUnavailable, match=words):
        find_model("owner/name", var)


INDEX = {"weight_map": {"model.layers.0.a": "one.safetensors", "model.layers.1.a": "two.safetensors"}}


class HubOfManyFiles(Hub):
    """Brings what the patterns ask for, as the library does."""

    FILES = (
        "config.json",
        "tokenizer_config.json",
        "model.safetensors.index.json",
        "one.safetensors",
        "two.safetensors",
    )

    def snapshot_download(self, hub_id: str, *, local_files_only: bool = False, **options: Any) -> str:
        if local_files_only:
            raise LocalEntryNotFoundError("not here")
        if self.error is not None:
            raise self.error
        self.downloads.append(options)
        self.snapshot.mkdir(parents=True, exist_ok=True)
        for name in huggingface_hub.utils.filter_repo_objects(self.FILES, allow_patterns=options["allow_patterns"]):
            content: Any = {"num_hidden_layers": 2} if name == "config.json" else INDEX
            (self.snapshot / name).write_text(json.dumps(content))
        return str(self.snapshot)


@pytest.fixture
def many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HubOfManyFiles:
    hub = HubOfManyFiles(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub.snapshot_download)
    monkeypatch.setattr(
        huggingface_hub,
        "try_to_load_from_cache",
        lambda hub_id, name: str(hub.snapshot / name) if (hub.snapshot / name).exists() else None,
    )
    return hub


def wants(*names: str) -> Callable[[Path], set[str] | None]:
    def wanted(folder: Path) -> set[str] | None:
        assert (folder / "config.json").exists()
        return set(names)

    return wanted


def test_a_node_downloads_only_the_files_that_hold_its_layers(many: HubOfManyFiles, var: Path) -> None:
    found = find_model("owner/name", var, wanted=wants("two.safetensors"))
    assert sorted(path.name for path in found.folder.glob("*.safetensors")) == ["two.safetensors"]
    assert found.fingerprint == f"owner/name@{COMMIT}", "the same model, whatever part of it is here"
    assert [options["revision"] for options in many.downloads] == [None, COMMIT], "one commit for both downloads"


def test_a_part_that_is_here_is_used_without_asking_the_hub(many: HubOfManyFiles, var: Path) -> None:
    find_model("owner/name", var, wanted=wants("two.safetensors"))
    many.error = OSError("no network")
    assert find_model("owner/name", var, wanted=wants("two.safetensors")).folder == many.snapshot
    with pytest.raises(ModelUnavailable, match="cannot be reached"):
        find_model("owner/name", var, wanted=wants("one.safetensors"))


def test_a_model_in_one_file_is_downloaded_whole(many: HubOfManyFiles, var: Path) -> None:
    found = find_model("owner/name", var, wanted=lambda folder: None)
    assert len(list(found.folder.glob("*.safetensors"))) == 2
