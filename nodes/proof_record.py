"""Keeps the verdict of a proof, so that a node that starts again need not run it again.

One file per combination of all that the verdict depends on: `<var dir>/proofs/<sha256 of the key>.json`. The file
holds its key too; a file that is damaged, or holds another key, is ignored, and the proof runs. A refusal is never
kept: whatever made a shard refuse may be mended by the next start.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nodes.kv_footprint import Footprint, LayerFootprint
from nodes.proof import Verdict

logger = logging.getLogger(__name__)

FOLDER = "proofs"


@dataclass(frozen=True)
class ProofKey:
    """All that a verdict depends on. versions: by name, of meshnet, torch, transformers, Python and the platform."""

    fingerprint: str
    layers: str
    dtype: str
    device: str
    context_length: int
    versions: Mapping[str, str]

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    def path(self, folder: Path) -> Path:
        return folder / f"{self.digest}.json"


def proved(key: ProofKey, folder: Path | None, prove: Callable[[], Verdict]) -> Verdict:
    """The kept verdict, or that of `prove`, which is then kept; without a folder nothing is read or kept.

    Logs one line that says which. Raises what `prove` raises, and keeps nothing then.
    """
    if folder is not None:
        kept = read(key, folder)
        if kept is not None:
            logger.info(
                "The proof of the layers %s was taken over from %s: %s.", key.layers, key.path(folder), _words(kept)
            )
            return kept
    begun = time.perf_counter()
    verdict = prove()
    logger.info(
        "The proof of the layers %s ran in %.1f s: %s.", key.layers, time.perf_counter() - begun, _words(verdict)
    )
    if folder is not None:
        write(key, folder, verdict)
    return verdict


def read(key: ProofKey, folder: Path) -> Verdict | None:
    """The verdict kept under this key; None when there is none, or none that can be trusted."""
    try:
        data = json.loads(key.path(folder).read_bytes())
        if data["key"] != asdict(key):
            return None
        verdict = data["verdict"]
        layers = tuple(
            LayerFootprint(_count(layer["fixed"]), _count(layer["per_token"]), _most(layer["most_tokens"]))
            for layer in verdict["layers"]
        )
        supports = verdict["supports_kv_cache"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(supports, bool) or (supports and not layers):
        return None
    return Verdict(supports, Footprint(layers))


def write(key: ProofKey, folder: Path, verdict: Verdict) -> None:
    """Puts the file in place in one step. A folder that cannot be written to costs the proof at each start, no more."""
    data: dict[str, Any] = {
        "key": asdict(key),
        "verdict": {
            "supports_kv_cache": verdict.supports_kv_cache,
            "layers": [asdict(layer) for layer in verdict.footprint.layers],
        },
    }
    path = key.path(folder)
    partial = folder / f".{path.name}.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(data, indent=1) + "\n")
        partial.replace(path)
    except OSError as error:
        logger.warning("The proof's verdict cannot be kept: %s", error)
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is not a number of bytes or tokens")
    return value


def _most(value: Any) -> int | None:
    return None if value is None else _count(value)


def _words(verdict: Verdict) -> str:
    return "passed" if verdict.supports_kv_cache else "serving without a cache"
