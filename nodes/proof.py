"""The proof before serving: on its own real weights, a shard shows that cutting and caching do not change its output.

Three checks, a few forward passes over 20 made-up positions:

1. a run through no layer returns its input bit for bit (else the forward does something on every shard);
2. [a, m) and then [m, b) equal [a, b), where the layers can be cut at all;
3. pieces of 12, 4 and 4 positions on one cache equal the whole without a cache. Single tokens alone would not show
   a wrong mask (case A01). In 16 bit this is compared layer by layer.

A shard that fails 1 or 2 must not serve; one that fails 3 serves without a cache.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch

from nodes.errors import ShardRefused
from nodes.kv_cache import ShardCache
from nodes.kv_footprint import Footprint
from nodes.layers import LayerRange
from nodes.shard import ModelShard

logger = logging.getLogger(__name__)

PIECES = (12, 4, 4)
#: Largest difference allowed, relative to the largest value. fp32: correct runs measured 5e-7, the traps 4e-3 and
#: more. 16 bit can only show gross errors: its own rounding reaches 3 % of what a layer adds.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 5e-2, torch.bfloat16: 2e-1}

#: Says nothing about the model.
NO_MEMORY = (MemoryError, torch.OutOfMemoryError)


@dataclass(frozen=True)
class Verdict:
    """What the proof allows, and what a session takes on this shard."""

    supports_kv_cache: bool
    footprint: Footprint = field(default_factory=Footprint)


@torch.inference_mode()
def prove(shard: ModelShard) -> Verdict:
    """Runs the proof on the calling thread, which must be the engine's. Raises ShardRefused that says what differs."""
    length = sum(PIECES)
    if shard.shape.context_length < length:
        raise ShardRefused(f"The context length must be {length} tokens or more, not {shard.shape.context_length}.")
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(1, length, shard.shape.hidden_size, generator=generator).to(shard.dtype)

    start, end = shard.layers.start, shard.layers.end
    through_none = _run(shard, hidden, LayerRange(start, start)).to("cpu")
    if not torch.equal(through_none, hidden):
        raise ShardRefused(
            "A run through no layer changed its input: the model's forward does something before its first layer that "
            "every shard would repeat."
        )
    whole = _run(shard, hidden, shard.layers)
    if not torch.isfinite(whole).all():
        raise ShardRefused("The layers turn ordinary input into NaN or infinite values.")
    middle = _cut(shard)
    if middle is not None:
        halves = _run(shard, _run(shard, hidden, LayerRange(start, middle)), LayerRange(middle, end))
        error = difference(halves, whole)
        if not error <= TOLERANCE[shard.dtype]:  # NaN is no agreement
            raise ShardRefused(
                f"Layers {start}:{middle} and then {middle}:{end} differ from {start}:{end} by {error:.1e}: the model "
                "cannot be cut between its layers."
            )
    return _prove_cache(shard, hidden, whole)


def _run(shard: ModelShard, hidden: torch.Tensor, layers: LayerRange) -> torch.Tensor:
    try:
        return shard.forward(hidden, 0, None, layers)
    except NO_MEMORY:
        raise
    except Exception as error:  # whatever the code of an untested model raises: the shard must not serve
        raise ShardRefused(f"The layers {layers} cannot run: {type(error).__name__}: {error}") from error


def _cut(shard: ModelShard) -> int | None:
    """Where to halve the shard: next to its middle. None for a single layer, or layers that must stay together."""
    start, end = shard.layers.start, shard.layers.end
    for cut in sorted(range(start + 1, end), key=lambda cut: (abs(2 * cut - start - end), cut)):
        if shard.runs_alone(LayerRange(start, cut)) and shard.runs_alone(LayerRange(cut, end)):
            return cut
    return None


def _prove_cache(shard: ModelShard, hidden: torch.Tensor, whole: torch.Tensor) -> Verdict:
    try:
        cache = shard.new_cache()
        if shard.dtype == torch.float32:
            error = difference(_in_pieces(shard, hidden, cache), whole)
        else:
            error = _worst_layer(shard, hidden, cache)
    except NO_MEMORY:  # passes; the verdict is kept
        raise
    except (TypeError, ValueError, RuntimeError, LookupError, AttributeError) as failure:
        # A model whose layers reject the cache's arguments can still serve, statelessly.
        logger.warning("The layers %s cannot cache (%s): serving without a cache.", shard.layers, failure)
        return Verdict(supports_kv_cache=False)
    if not error <= TOLERANCE[shard.dtype]:
        logger.warning(
            "The layers %s differ by %.1e when they run in pieces on a cache: serving without a cache.",
            shard.layers,
            error,
        )
        return Verdict(supports_kv_cache=False)
    return Verdict(supports_kv_cache=True, footprint=cache.footprint())


def _in_pieces(shard: ModelShard, hidden: torch.Tensor, cache: ShardCache) -> torch.Tensor:
    pieces = [shard.forward(piece, cache.tokens, cache) for piece in hidden.split(PIECES, dim=1)]
    return torch.cat(pieces, dim=1)


def _worst_layer(shard: ModelShard, hidden: torch.Tensor, cache: ShardCache) -> float:
    """Largest difference that a single layer makes when the shard runs in pieces on its cache.

    In 16 bit the layers magnify each other's rounding: behind 29 layers of the default model, right ones differed by
    0.8 in bfloat16 and wrong ones by 0.9. So each layer gets the input that it had in the run without a cache: right
    ones then differ by up to 0.03, wrong ones by 1 and more.
    """
    inputs: list[torch.Tensor] = []
    added: list[torch.Tensor] = []
    errors: list[float] = []

    def record(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        inputs.append(args[0].clone())
        added.append(_first(output) - args[0])

    with ExitStack() as hooks:
        for block in shard.blocks:
            hooks.callback(block.register_forward_hook(record, with_kwargs=True).remove)
        shard.forward(hidden, 0, None)
    if len(inputs) != len(shard.blocks):
        raise ValueError("The layers do not run once each")

    with ExitStack() as hooks:
        for index, block in enumerate(shard.blocks):

            def replace(
                module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], index: int = index
            ) -> tuple[tuple[Any, ...], dict[str, Any]]:
                return (_at(inputs[index], cache, args[0]), *args[1:]), kwargs

            def compare(
                module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any, index: int = index
            ) -> None:
                errors.append(difference(_first(output) - args[0], _at(added[index], cache, args[0])))

            hooks.callback(block.register_forward_pre_hook(replace, with_kwargs=True).remove)
            hooks.callback(block.register_forward_hook(compare, with_kwargs=True).remove)
        _in_pieces(shard, hidden, cache)
    return float(torch.tensor(errors).max())  # NaN stays NaN


def _at(recorded: torch.Tensor, cache: ShardCache, piece: torch.Tensor) -> torch.Tensor:
    """The positions that this piece stands for."""
    return recorded[:, cache.tokens : cache.tokens + piece.shape[1]]


def _first(output: Any) -> torch.Tensor:
    found: torch.Tensor = output[0] if isinstance(output, tuple) else output
    return found


def difference(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference, relative to the largest expected value (at least 1)."""
    scale = max(1.0, float(expected.float().abs().max()))
    return float((actual.float() - expected.float()).abs().max()) / scale
