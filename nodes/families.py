"""The table of model types that were tested shard by shard against the whole model. One line adds a family.

Knows configurations, not weights. Imports nothing heavy, so that commands may read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nodes.errors import ShardRefused

#: transformers changes masks and caches between minor versions (case A03): only the tested one serves.
TESTED_TRANSFORMERS = "5.24."


@dataclass(frozen=True)
class Family:
    """How the model class of one `model_type` is cut.

    final_norm: attribute of the base model that follows the last layer. neutral: attributes of the base model that a
    shard must set so that it does not repeat what the head did before layer 0.
    """

    final_norm: str = "norm"
    neutral: Mapping[str, float] = field(default_factory=dict)


FAMILIES: dict[str, Family] = {
    "llama": Family(),
    "qwen2": Family(),
    "qwen3": Family(),
    "qwen3_moe": Family(),
    "mixtral": Family(),
    "mistral": Family(),
    "gemma2": Family(),
    "gemma3_text": Family(),
    "olmo2": Family(),
    "phi3": Family(),
    "glm4": Family(),
    "gpt_oss": Family(),
    "qwen3_next": Family(),
    "qwen3_5_text": Family(),
    "qwen3_5_moe_text": Family(),
    "lfm2": Family(final_norm="embedding_norm"),
    "granite": Family(neutral={"embedding_multiplier": 1.0}),
}


#: Checkpoints that wrap a text model (multimodal ones), by the outer `model_type`: how the text model's weights are
#: called inside, as regular expressions. Without these, transformers fills the text model with random weights and says
#: so in a warning only. Old and new ways of saving are both here.
_INSIDE = {
    r"^language_model\.model\.": "model.",
    r"^language_model\.lm_head\.": "lm_head.",
    r"^model\.language_model\.": "model.",
}
WRAPPED: dict[str, Mapping[str, str]] = {
    "gemma3": _INSIDE,
    "mistral3": _INSIDE,
    "qwen3_5": _INSIDE,
    "qwen3_5_moe": _INSIDE,
}


def text_part(config: Any) -> tuple[Any, Mapping[str, str]]:
    """The configuration of the text model, and how a wrapped checkpoint names its weights (empty for a plain one).

    Whether embeddings are tied is said by the outer configuration, whatever the inner one says.
    """
    renames = WRAPPED.get(config.model_type)
    if renames is None:
        return config, {}
    text = config.get_text_config()
    text.tie_word_embeddings = config.tie_word_embeddings
    return text, renames


def family_of(config: Any) -> Family:
    """The family of a transformers configuration; for a type that was not tested, the one that most types are like."""
    return FAMILIES.get(config.model_type, Family())


def check_tested(config: Any) -> None:
    """Raises ShardRefused for a type that is not in the table."""
    if config.model_type not in FAMILIES:
        raise ShardRefused(
            f"Models of type {config.model_type!r} were not tested shard by shard. Tested are: {', '.join(FAMILIES)}. "
            "MESHNET_ALLOW_UNTESTED_MODELS=true serves it all the same if it passes the proof."
        )


def check_config(config: Any) -> None:
    """Raises ShardRefused for a model that hidden states alone do not drive, or that does not say its sizes."""
    for name in ("num_hidden_layers", "hidden_size", "vocab_size"):
        if not isinstance(getattr(config, name, None), int):
            raise ShardRefused(f"The configuration of type {config.model_type!r} does not say {name}.")
    if getattr(config, "hidden_size_per_layer_input", 0):
        raise ShardRefused(
            f"Models of type {config.model_type!r} with per-layer embeddings (hidden_size_per_layer_input) cannot be "
            "cut: token ids feed every layer, and only hidden states travel between nodes."
        )


def check_transformers_version(version: str) -> None:
    """Raises ShardRefused when this transformers was not tested."""
    if not version.startswith(TESTED_TRANSFORMERS):
        raise ShardRefused(
            f"transformers {version} is installed, but meshnet was tested with {TESTED_TRANSFORMERS}x only: "
            f"pip install 'transformers=={TESTED_TRANSFORMERS}*'"
        )


def check_rope(config: Any, context_length: int) -> None:
    """Raises ShardRefused when positions depend on the length of other texts (case A08).

    dynamic and longrope switch their frequencies on a text beyond the original length: cached keys were rotated with
    the old ones, and the frequencies are state of the module that all sessions share.
    """
    for rope in _rope_parameters(config):
        kind = rope.get("rope_type", "default")
        if kind not in ("dynamic", "longrope"):
            continue
        original = rope.get("original_max_position_embeddings") or config.max_position_embeddings
        if context_length > original:
            raise ShardRefused(
                f"The model's rotary embedding ({kind}) depends on the length of the text beyond {original} tokens, "
                f"which a shared cache cannot follow. Set MESHNET_CONTEXT_LENGTH to {original} or less."
            )


def _rope_parameters(config: Any) -> Iterable[dict[str, Any]]:
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    return nested or [parameters]
