"""Checks a model before it is served: every shard of a split is proved, and the chain of them is compared with the
whole model in one process.

The whole model is transformers' own, uncut and without a cache, so that nothing of what is checked here is in it. For
each split the chain runs the same 20 made-up tokens in pieces on its caches, and once more without, and then some
tokens of a greedy answer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from nodes.errors import MeshnetError, ShardRefused
from nodes.layers import LayerRange, split_evenly
from nodes.proof import PIECES, TOLERANCE, difference, prove
from nodes.shard import Blueprint, Embedder, ModelShard, read_blueprint

#: Tokens of the greedy answer.
ANSWER = 8
#: Every cut loads the model once more: more weights than this would take hours.
ALL_SPLITS_MOST_BYTES = 4 * 1024**3

Split = tuple[LayerRange, ...]


@dataclass(frozen=True)
class Finding:
    """One shard of a split (shard is its layers), or the chain of them all (shard is None).

    cached and stateless: whether that way of running is right; None was not tried. difference: of the chain's last
    logits from the whole model's, relative to the largest of these.
    """

    split: Split
    shard: LayerRange | None
    cached: bool | None
    stateless: bool | None
    difference: float | None
    bytes_per_token: int | None
    verdict: str

    @property
    def good(self) -> bool:
        return bool(self.cached and self.stateless)


def default_splits(n_layers: int) -> list[Split]:
    """The even splits into two and three, and a tail of a single layer; fewer for a model of very few layers."""
    cuts = [tuple(split_evenly(n_layers, shards)) for shards in (2, 3) if shards <= n_layers]
    if n_layers > 1:
        cuts.append((LayerRange(0, n_layers - 1), LayerRange(n_layers - 1, n_layers)))
    return list(dict.fromkeys(cuts)) or [(LayerRange(0, n_layers),)]


def every_cut(n_layers: int) -> list[Split]:
    """Every way to cut the model into two."""
    return [(LayerRange(0, cut), LayerRange(cut, n_layers)) for cut in range(1, n_layers)]


def parse_split(text: str, n_layers: int) -> Split:
    """`"0:15,15:30"` -> the split. Raises ValueError when its parts do not follow each other from 0 to the end."""
    split = tuple(LayerRange.parse(part) for part in text.split(","))
    ends = [0, *(layers.end for layers in split)]
    if [layers.start for layers in split] != ends[:-1] or ends[-1] != n_layers:
        raise ValueError(f"{text} does not run through the layers 0:{n_layers} without gap or overlap.")
    return split


class ModelCheck:
    """A model and its whole self. `load` takes the memory of all weights, each split about as much once more."""

    def __init__(self, blueprint: Blueprint, dtype: torch.dtype, device: str, *, allow_untested: bool) -> None:
        self._blueprint = blueprint
        self._dtype = dtype
        self._device = device
        self._options: dict[str, Any] = {
            "dtype": dtype,
            "context_length": blueprint.shape.context_length,
            "allow_untested": allow_untested,
        }
        self.n_layers = blueprint.shape.n_layers

    @classmethod
    def of(
        cls, folder: Path, *, dtype: torch.dtype, device: str = "cpu", context_length: int = 0, allow_untested: bool
    ) -> ModelCheck:
        """Reads the configuration. Raises ShardRefused."""
        blueprint = read_blueprint(folder, context_length, allow_untested=allow_untested)
        needed = sum(PIECES) + ANSWER
        if blueprint.shape.context_length < needed:
            raise ShardRefused(f"The check needs a context length of {needed} tokens or more.")
        return cls(blueprint, dtype, device, allow_untested=allow_untested)

    @torch.inference_mode()
    def load(self) -> None:
        """Loads the whole model and the embeddings, and runs the whole model. Raises ShardRefused."""
        generator = torch.Generator().manual_seed(0)
        self._ids = torch.randint(self._blueprint.shape.vocab_size, (sum(PIECES),), generator=generator).tolist()
        try:
            whole = _load_whole(self._blueprint, self._dtype).to(self._device)
            self._expected = [self._whole_logits(whole, self._ids[:end]) for end in itertools.accumulate(PIECES)]
            self._answer: list[int] = []
            for _ in range(ANSWER):
                self._answer.append(int(self._whole_logits(whole, [*self._ids, *self._answer]).argmax()))
            self._embedder = Embedder.load(self._blueprint.folder, **self._options)
        except MeshnetError:
            raise
        except Exception as error:  # whatever the code of an untested model raises
            raise ShardRefused(f"The whole model cannot run: {type(error).__name__}: {error}") from error

    def run(self, splits: Sequence[Split], say: Callable[[str], None]) -> Iterator[Finding]:
        """Checks the splits one after another; `say` hears what begins. A refused shard is a finding, not an error."""
        for number, split in enumerate(splits, 1):
            say(f"Split {number} of {len(splits)}: {' | '.join(map(str, split))}")
            yield from self._check(split)

    @torch.inference_mode()
    def _check(self, split: Split) -> Iterator[Finding]:
        shards, caches = [], True
        per_token = 0
        for layers in split:
            try:
                shard = ModelShard.load(self._blueprint.folder, layers, device=self._device, **self._options)
                verdict = prove(shard)
            except Exception as error:  # whatever the code of an untested model raises
                reason = error.detail if isinstance(error, MeshnetError) else f"{type(error).__name__}: {error}"
                yield Finding(split, layers, None, False, None, None, f"refused: {reason}")
                continue
            shards.append(shard)
            caches = caches and verdict.supports_kv_cache
            per_token += verdict.footprint.per_token
            words = "proved" if verdict.supports_kv_cache else "differs with a cache: served without one"
            size = verdict.footprint.per_token if verdict.supports_kv_cache else None
            yield Finding(split, layers, verdict.supports_kv_cache, True, None, size, words)
        if len(shards) == len(split):
            yield self._compare(split, shards, caches, per_token)

    def _compare(self, split: Split, shards: list[ModelShard], caches: bool, per_token: int) -> Finding:
        try:
            without = difference(self._chain(shards, self._ids, None), self._expected[-1])
            stateless = without <= TOLERANCE[self._dtype]
            if not caches:
                return Finding(split, None, None, stateless, without, None, "equal" if stateless else "differs")
            held = [shard.new_cache() for shard in shards]
            pieces = [self._chain(shards, piece, held) for piece in _pieces(self._ids)]
            within = _largest([difference(*pair) for pair in zip(pieces, self._expected, strict=True)])
            answer = [int(pieces[-1].argmax())]
            while len(answer) < ANSWER:
                answer.append(int(self._chain(shards, answer[-1:], held).argmax()))
        except Exception as error:  # whatever the code of an untested model raises
            return Finding(split, None, False, False, None, None, f"failed: {type(error).__name__}: {error}")
        cached, words = within <= TOLERANCE[self._dtype], "equal"
        if not cached or not stateless:
            words = "differs"
        elif answer != self._answer:
            # 16-bit formats round differently with and without a cache: there a tie says nothing (case A14).
            words = "equal, but for greedy tokens"
            cached = self._dtype != torch.float32
        return Finding(split, None, cached, stateless, _largest([within, without]), per_token, words)

    def _chain(self, shards: list[ModelShard], ids: list[int], caches: list[Any] | None) -> torch.Tensor:
        """Logits behind the last of these tokens."""
        hidden = self._embedder.embed(ids)
        held = caches or [None] * len(shards)
        for shard, cache in zip(shards[:-1], held[:-1], strict=True):
            hidden = shard.forward(hidden, cache.tokens if cache is not None else 0, cache)
        last = held[-1]
        return shards[-1].logits(hidden, last.tokens if last is not None else 0, last).cpu()

    def _whole_logits(self, whole: Any, ids: list[int]) -> torch.Tensor:
        output = whole(input_ids=torch.tensor([ids], device=self._device), use_cache=False)
        return output.logits[0, -1].float().cpu()


def _largest(differences: list[float]) -> float:
    """NaN if there is one, which max() may pass over."""
    return float(torch.tensor(differences, dtype=torch.float64).max())


def _pieces(ids: list[int]) -> Iterator[list[int]]:
    start = 0
    for size in PIECES:
        yield ids[start : start + size]
        start += size


def _load_whole(blueprint: Blueprint, dtype: torch.dtype) -> Any:
    cls: Any = AutoModelForCausalLM._model_mapping[type(blueprint.config)]
    model, report = cls.from_pretrained(
        blueprint.folder,
        config=blueprint.config,
        dtype=dtype,
        output_loading_info=True,
        key_mapping=dict(blueprint.renames) or None,
    )
    missing = sorted({*report["missing_keys"], *(str(key) for key in report["mismatched_keys"])})
    if missing:
        raise ShardRefused(f"{len(missing)} weights are missing or misshapen, {missing[0]} among them.")
    return model.eval().requires_grad_(False)
