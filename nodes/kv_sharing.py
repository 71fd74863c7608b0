"""Models whose late layers reuse the keys and values of earlier ones (case A11): which layers must stay together.

Keys travel between such layers inside one forward only: on the wire there are hidden states and nothing else. Knows
configurations, not weights; imports nothing heavy.
"""

from __future__ import annotations

from typing import Any

from nodes.errors import ShardRefused
from nodes.layers import LayerRange


def producers(config: Any) -> dict[int, int]:
    """Consuming layer -> the layer whose keys and values it reuses; empty for nearly all models.

    Raises ShardRefused for a way of sharing that this code does not know.
    """
    sources = getattr(config, "kv_source_layers", None)
    if sources is not None:
        return {layer: source for layer, source in enumerate(sources) if layer != source}
    shared = getattr(config, "num_kv_shared_layers", 0) or 0
    types = getattr(config, "layer_types", None)
    n_layers = config.num_hidden_layers
    if not shared:
        modes = getattr(config, "kv_sharing_modes", None) or []
        if any(str(mode).startswith("reuse") for mode in modes):
            raise _unknown(config)
        return {}
    first = n_layers - shared
    if types is None or len(types) != n_layers or not 0 < first < n_layers:
        raise _unknown(config)
    found = {}
    for layer in range(first, n_layers):
        # The last layer of the same type that still has keys of its own.
        own = [index for index in range(first) if types[index] == types[layer]]
        if not own:
            raise _unknown(config)
        found[layer] = own[-1]
    return found


def runs_alone(config: Any, layers: LayerRange) -> bool:
    """Whether every layer of the range that reuses keys finds their producer in the range."""
    return not _strays(config, layers)


def check_sharing(config: Any, layers: LayerRange) -> None:
    """Raises ShardRefused that names the layers which need a producer outside the range."""
    strays = _strays(config, layers)
    if not strays:
        return
    named = ", ".join(f"{layer} (of {source})" for layer, source in strays.items())
    first = min(producers(config).values())
    raise ShardRefused(
        f"The layers {layers} cannot run alone, because these reuse keys and values of layers before "
        f"{layers.start}: {named}. Cut this model at layer {first} or before."
    )


def _strays(config: Any, layers: LayerRange) -> dict[int, int]:
    return {
        layer: source for layer, source in producers(config).items() if layer in layers and source not in layers
    }  # fmt: skip


def _unknown(config: Any) -> ShardRefused:
    return ShardRefused(
        f"Models of type {config.model_type!r} share keys and values between layers in a way that is not known here."
    )
