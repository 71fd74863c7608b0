"""Which weight files of a model hold a part of it, and a view of a folder that shows only those.

transformers opens every file that a model's index names. A part of a model in many files is therefore loaded from a
view: a folder of links to the needed files with an index that names them alone. Knows names, not tensors.
"""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from nodes.errors import ModelUnavailable, ShardRefused
from nodes.layers import LayerRange

INDEX = "model.safetensors.index.json"
_LAYER = re.compile(r"\.layers\.(\d+)\.")


@dataclass(frozen=True)
class Part:
    """What of a model is wanted: layers, and on the ends the embeddings (head) or norm and language head (tail).

    renames turns names of a wrapped (multimodal) checkpoint into those of its text model, as regular expressions.
    """

    layers: LayerRange
    embeddings: bool = False
    tail: bool = False
    renames: Mapping[str, str] = field(default_factory=dict)

    def needs(self, key: str) -> bool:
        """Whether the part holds the weight of this name. When in doubt, yes: a file too many costs only time."""
        for pattern, replacement in self.renames.items():
            key = re.sub(pattern, replacement, key)
        if self.renames and not key.startswith(("model.", "lm_head.")):
            return False  # of an encoder for images, which this part of the model does not have
        layer = _LAYER.search(key)
        if layer is not None:
            return int(layer[1]) in self.layers
        if ".embed_tokens." in key:
            return self.embeddings
        if key.startswith("lm_head.") or key.endswith("norm.weight"):
            return self.tail
        return True


def needed_files(folder: Path, part: Part) -> set[str] | None:
    """Names of the files that hold the part; None for a model in a single file. Raises ModelUnavailable."""
    index = folder / INDEX
    if not index.exists():
        return None
    try:
        weight_map: dict[str, str] = json.loads(index.read_bytes())["weight_map"]
        return {str(name) for key, name in weight_map.items() if part.needs(key)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelUnavailable(f"{index} cannot be read: {error!r}") from None


@contextlib.contextmanager
def view_of(folder: Path, part: Part) -> Iterator[Path]:
    """A folder that shows the part's weight files only; the folder itself for a model in a single file.

    Raises ShardRefused when a needed file is not here. Tensors loaded from the view outlive it.
    """
    names = needed_files(folder, part)
    if names is None:
        yield folder
        return
    absent = sorted(name for name in names if not (folder / name).exists())
    if absent:
        raise ShardRefused(
            f"{folder.name} lacks {absent[0]}, which holds weights of the layers {part.layers}"
            f"{' and ' + str(len(absent) - 1) + ' more files' if len(absent) > 1 else ''}."
        )
    index = json.loads((folder / INDEX).read_bytes())
    index["weight_map"] = {key: name for key, name in index["weight_map"].items() if name in names}
    with tempfile.TemporaryDirectory(prefix="meshnet-view-") as made:
        view = Path(made)
        for path in folder.iterdir():
            if path.name != INDEX and (path.suffix != ".safetensors" or path.name in names):
                (view / path.name).symlink_to(path.resolve())
        (view / INDEX).write_text(json.dumps(index))
        yield view
