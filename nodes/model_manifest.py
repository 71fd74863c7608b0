"""The fingerprint of a model folder: the SHA-256 of a manifest that lies in the folder and travels with it.

The manifest lists name, size and SHA-256 of every file that shapes the text. It is written once, by whoever holds the
whole model; a node that was given only a part of the weight files takes the fingerprint from it and checks its own
files. Algorithm of `folder_fingerprint`:

1. Without a manifest: hash everything, write it. A folder that lacks weight files cannot make one.
2. With one: every file that is here must be listed with its size. Files that changed after the manifest was written
   (by inode change time, which copying tools cannot set back) must also have the listed hash.
3. Files that do not fit: in a whole folder the model was changed, so the manifest is made anew; in a part of one it
   is the wrong part, and the node must not serve.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from nodes.errors import ModelUnavailable

MANIFEST = "meshnet_manifest.json"
#: Besides every `*.safetensors` file and index. Readme, images and weights in other formats do not shape the text.
TEXT_FILES = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja",
    "chat_template.json",
)  # fmt: skip

#: One line of the manifest: name, size, sha256.
Entry = dict[str, Any]


def folder_fingerprint(folder: Path) -> str:
    """`sha256:<hex>` of the folder's manifest, which is written when it can be. Raises ModelUnavailable.

    In a folder that cannot be written to, the result is the same and is computed anew each time.
    """
    files = _files(folder)
    entries = _read(folder)
    if entries is not None:
        problem = _mismatch(folder, files, entries)
        if problem is None:
            return _fingerprint(entries)
        if any(not (folder / name).exists() for name in entries):
            raise ModelUnavailable(
                f"{folder} does not fit its {MANIFEST}: {problem}. Copy the model's files from where the manifest "
                "was made once more, or remove the manifest if all of the model's files are here."
            )
    missing = missing_weights(folder)
    if missing:
        raise ModelUnavailable(
            f"{folder} lacks {missing[0]} and has no {MANIFEST} to say which model its part belongs to. Copy the "
            "manifest from a folder that holds the whole model; start a node there once to make it."
        )
    entries = {path.name: _entry(path) for path in files}
    _write(folder, entries)
    return _fingerprint(entries)


def missing_weights(folder: Path) -> list[str]:
    """Weight files that an index of the folder names and that are not here."""
    missing = []
    for index in sorted(folder.glob("*.safetensors.index.json")):
        try:
            names = set(json.loads(index.read_bytes())["weight_map"].values())
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelUnavailable(f"{index} cannot be read: {error!r}") from None
        missing += [str(name) for name in sorted(names) if not (folder / str(name)).exists()]
    return missing


def _files(folder: Path) -> list[Path]:
    found = [folder / name for name in TEXT_FILES if (folder / name).is_file()]
    return sorted([*found, *folder.glob("*.safetensors"), *folder.glob("*.safetensors.index.json")])


def _entry(path: Path) -> Entry:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"name": path.name, "size": path.stat().st_size, "sha256": digest}


def _mismatch(folder: Path, files: list[Path], entries: dict[str, Entry]) -> str | None:
    """What does not fit between the files that are here and the manifest; None when all fits."""
    written = (folder / MANIFEST).stat().st_ctime_ns
    rehashed = False
    for path in files:
        entry = entries.get(path.name)
        if entry is None:
            return f"{path.name} is not listed"
        if path.stat().st_size != entry["size"]:
            return f"{path.name} has another size"
        # A fine-tune saved over the old weights has the same sizes.
        if path.stat().st_ctime_ns >= written:
            if _entry(path)["sha256"] != entry["sha256"]:
                return f"{path.name} has other content"
            rehashed = True
    if rehashed:
        # The files were copied after the manifest and proved to be the listed ones: no need to hash them next time.
        with contextlib.suppress(OSError):
            os.utime(folder / MANIFEST)
    return None


def _fingerprint(entries: dict[str, Entry]) -> str:
    lines = [[name, entries[name]["size"], entries[name]["sha256"]] for name in sorted(entries)]
    return "sha256:" + hashlib.sha256(json.dumps(lines, separators=(",", ":")).encode()).hexdigest()


def _read(folder: Path) -> dict[str, Entry] | None:
    """The manifest's entries by name. None when there is none, or one that cannot be understood."""
    try:
        data = json.loads((folder / MANIFEST).read_bytes())
        entries = {
            str(entry["name"]): {
                "name": str(entry["name"]), "size": int(entry["size"]), "sha256": str(entry["sha256"])
            }
            for entry in data["files"]
        }  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return entries or None


def _write(folder: Path, entries: dict[str, Entry]) -> None:
    """Puts the manifest in place in one step; of two nodes that start at once, either writes the same."""
    partial = folder / f".{MANIFEST}.{os.getpid()}"
    files = [entries[name] for name in sorted(entries)]
    try:
        partial.write_text(json.dumps({"files": files}, indent=1) + "\n")
        partial.replace(folder / MANIFEST)
    except OSError:  # a read-only folder
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
