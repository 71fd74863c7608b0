"""A shard: some layers of a causal language model, loaded alone and run through the model's own forward.

Knows nothing of sessions, HTTP or Django. Every method that computes belongs on the engine's thread (torch keeps one
OpenMP pool per thread, and inference mode is per thread), under `torch.inference_mode()`.
"""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.distributed.pipeline_parallel import PipelineIdentityLayer

from nodes.blocked_linear import block_weights
from nodes.errors import ShardRefused
from nodes.families import check_config, check_rope, check_tested, check_transformers_version, family_of, text_part
from nodes.kv_cache import ShardCache
from nodes.kv_sharing import check_sharing, runs_alone
from nodes.layers import LayerRange
from nodes.packing import PackedStep, Part, packed_attention, run_mixers_by_part
from nodes.weight_files import Part as WeightPart
from nodes.weight_files import needed_files, view_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelShape:
    """What the mesh must agree on about a model, in tokens and numbers of values."""

    model_type: str
    n_layers: int
    hidden_size: int
    vocab_size: int
    context_length: int


@dataclass(frozen=True)
class Blueprint:
    """The text model of a folder before its weights: configuration, shape, and the renames of a wrapped checkpoint."""

    folder: Path
    config: Any
    shape: ModelShape
    renames: Mapping[str, str]


def read_blueprint(folder: Path, context_length: int = 0, *, allow_untested: bool = False) -> Blueprint:
    """Reads the configuration alone. Raises ShardRefused when this code was not tested with it.

    allow_untested lets a type outside the table pass; only the proof can then say whether it may serve.
    """
    check_transformers_version(transformers.__version__)
    try:
        config = AutoConfig.from_pretrained(folder)
    except (ValueError, OSError) as error:
        raise ShardRefused(f"The configuration in {folder.name} cannot be read: {error}") from None
    config, renames = text_part(config)
    if not allow_untested:
        check_tested(config)
    check_config(config)
    own_length = getattr(config, "max_position_embeddings", None) or context_length
    length = min(context_length or own_length, own_length)
    if not length:
        raise ShardRefused("The model names no context length: set MESHNET_CONTEXT_LENGTH.")
    check_rope(config, length)
    shape = ModelShape(
        model_type=config.model_type,
        n_layers=config.num_hidden_layers,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        context_length=length,
    )
    return Blueprint(folder, config, shape, renames)


class ModelShard:
    """The layers [start, end) of a model; the last shard also holds the final norm and the head (the *tail*).

    `forward` and `logits` take hidden states [1, T, hidden] at the positions past_len … past_len + T - 1 and a cache
    that already holds past_len tokens, or None to run without one. They append to the cache; when they raise, the
    cache's layers may have unequal lengths and must be dropped.
    """

    def __init__(self, model: Any, config: Any, shape: ModelShape, layers: LayerRange) -> None:
        self._model = model
        self._config = config
        self.shape = shape
        self.layers = layers
        self._views: dict[LayerRange, Any] = {layers: model}
        run_mixers_by_part(model)

    @classmethod
    def load(
        cls,
        folder: Path,
        layers: LayerRange | None,
        *,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        context_length: int = 0,
        allow_untested: bool = False,
    ) -> ModelShard:
        """Loads the layers from a local folder; None is all of them. Only their weights are read.

        Raises ShardRefused when the model type is untested, the layers do not exist or a weight is missing.
        """
        blueprint = read_blueprint(folder, context_length, allow_untested=allow_untested)
        shape = blueprint.shape
        layers = layers or LayerRange(0, shape.n_layers)
        if not LayerRange(0, shape.n_layers).holds(layers):
            raise ShardRefused(f"The model has layers 0:{shape.n_layers}; {layers} is not among them.")
        check_sharing(blueprint.config, layers)
        model = _load(blueprint, part_of(blueprint, layers), dtype)
        return cls(model.to(device), blueprint.config, shape, layers)

    @property
    def is_tail(self) -> bool:
        return self.layers.end == self.shape.n_layers

    @property
    def dtype(self) -> torch.dtype:
        return self._model.dtype

    @property
    def device(self) -> torch.device:
        return self._model.device

    @property
    def blocks(self) -> list[Any]:
        """The modules of the shard's layers, for the proof to watch."""
        return list(self._model.base_model.layers[self.layers.start : self.layers.end])

    def block_weights(self) -> int:
        """Reorders the weights for this processor (nodes/blocked_linear.py); how many it could be done for.

        Once, before the first run of a part of the shard, and before the proof, which must run what serves.
        """
        # Nothing looks ids up here: kept only as the language head's weights, which are about to have their own copy.
        self._model.base_model.embed_tokens = PipelineIdentityLayer()
        return block_weights(self._model)

    def runs_alone(self, layers: LayerRange) -> bool:
        """Whether these layers of the shard may run without the others (case A11)."""
        return runs_alone(self._config, layers)

    def new_cache(self, layers: LayerRange | None = None) -> ShardCache:
        """An empty cache for these layers of the shard (default: all)."""
        return ShardCache(self._config, layers or self.layers)

    def forward(
        self, hidden: torch.Tensor, past_len: int, cache: ShardCache | None, layers: LayerRange | None = None
    ) -> torch.Tensor:
        """Hidden states behind the given layers, [1, T, hidden]; behind the final norm when they end the model."""
        base = self._view(layers).base_model
        output = base(**self._inputs(hidden, past_len, cache))
        if cache is not None:
            cache.advance(hidden.shape[1])
        return output.last_hidden_state

    def logits(
        self, hidden: torch.Tensor, past_len: int, cache: ShardCache | None, layers: LayerRange | None = None
    ) -> torch.Tensor:
        """Logits of the last position, [vocabulary] in fp32. Only when the layers end the model.

        Runs the whole causal model, not base model plus head: soft-capping and scaling sit in between.
        """
        model = self._view(layers)
        output = model(**self._inputs(hidden, past_len, cache), logits_to_keep=1)
        if cache is not None:
            cache.advance(hidden.shape[1])
        return output.logits[0, -1].float()

    def forward_packed(self, parts: Sequence[Part], layers: LayerRange | None = None) -> list[torch.Tensor]:
        """`forward` for several sessions in one run: the hidden states behind the layers, for each part its own.

        Appends to every part's cache; when it raises, all of them may have layers of unequal length.
        """
        base = self._view(layers).base_model
        step = PackedStep(self._view(layers), parts)
        with packed_attention(base):
            output = base(**step.inputs()).last_hidden_state
        for part, length in zip(parts, step.lengths, strict=True):
            part.cache.advance(length)
        return list(output.split(step.lengths, dim=1))

    def logits_packed(
        self, parts: Sequence[Part], wanted: Sequence[bool], layers: LayerRange | None = None
    ) -> list[torch.Tensor | None]:
        """`logits` for several sessions in one run: of each part's last position, None where they are not wanted."""
        model = self._view(layers)
        step = PackedStep(model, parts)
        ends = torch.tensor(step.lengths).cumsum(0) - 1
        chosen = ends[torch.tensor(wanted)].to(self.device)
        with packed_attention(model):
            if chosen.numel():
                rows = iter(model(**step.inputs(), logits_to_keep=chosen).logits[0].float())
            else:
                model.base_model(**step.inputs())
                rows = iter(())
        for part, length in zip(parts, step.lengths, strict=True):
            part.cache.advance(length)
        return [next(rows) if want else None for want in wanted]

    def _inputs(self, hidden: torch.Tensor, past_len: int, cache: ShardCache | None) -> dict[str, Any]:
        positions = torch.arange(past_len, past_len + hidden.shape[1], device=self.device).unsqueeze(0)
        return {
            "inputs_embeds": hidden.to(self.device),
            "position_ids": positions,
            "cache": cache,
            "use_cache": cache is not None,
        }

    def _view(self, layers: LayerRange | None) -> Any:
        """The model with identities outside `layers`: shallow copies that share every weight, one per range."""
        if layers is None:
            return self._model
        view = self._views.get(layers)
        if view is None:
            view = _shallow(self._model)
            base = _shallow(self._model.base_model)
            base.layers = torch.nn.ModuleList(
                layer if index in layers else PipelineIdentityLayer()
                for index, layer in enumerate(self._model.base_model.layers)
            )
            if layers.end < self.shape.n_layers or layers.size == 0:
                setattr(base, family_of(self._config).final_norm, PipelineIdentityLayer())
            setattr(view, self._model.base_model_prefix, base)
            self._views[layers] = view
        return view


class Embedder:
    """Everything before layer 0, owned by the head: token ids to hidden states, scaled as the model wants it."""

    def __init__(self, model: Any, shape: ModelShape) -> None:
        self._model = model
        self.shape = shape
        # Most models only look the rows up; where that is bit for bit the same, the rest of the forward (masks,
        # rotary tables) need not run for every token.
        with torch.inference_mode():
            probe = torch.arange(min(16, shape.vocab_size)).unsqueeze(0)
            self._lookup_is_enough = torch.equal(self._whole(probe), self._lookup(probe))

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        dtype: torch.dtype = torch.float32,
        context_length: int = 0,
        allow_untested: bool = False,
    ) -> Embedder:
        """Loads the embeddings alone. Raises ShardRefused as `ModelShard.load` does."""
        blueprint = read_blueprint(folder, context_length, allow_untested=allow_untested)
        return cls(_load(blueprint, part_of(blueprint, None), dtype), blueprint.shape)

    @torch.inference_mode()
    def embed(self, token_ids: list[int]) -> torch.Tensor:
        """[T] ids -> [1, T, hidden], equal bit for bit to `hidden_states[0]` of the whole model (case A09)."""
        ids = torch.tensor([token_ids])
        return self._lookup(ids) if self._lookup_is_enough else self._whole(ids)

    def _lookup(self, ids: torch.Tensor) -> torch.Tensor:
        return self._model.get_input_embeddings()(ids)

    def _whole(self, ids: torch.Tensor) -> torch.Tensor:
        return self._model.base_model(input_ids=ids, use_cache=False).last_hidden_state


def _shallow(module: Any) -> Any:
    """A copy that shares parameters and children, but whose children can be exchanged."""
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    return twin


def part_of(blueprint: Blueprint, layers: LayerRange | None) -> WeightPart:
    """What a shard of these layers holds; None is the head's part, everything before layer 0."""
    if layers is None:
        return WeightPart(LayerRange(0, 0), embeddings=True, renames=blueprint.renames)
    tail = layers.end == blueprint.shape.n_layers
    # The tail's language head may be the embeddings themselves.
    return WeightPart(layers, tail and blueprint.config.tie_word_embeddings, tail, blueprint.renames)


def wanted_files(
    layers: LayerRange | None, context_length: int = 0, *, allow_untested: bool = False
) -> Callable[[Path], set[str] | None]:
    """For `find_model`: which weight files of a folder a shard of these layers needs (None: the head)."""

    def wanted(folder: Path) -> set[str] | None:
        blueprint = read_blueprint(folder, context_length, allow_untested=allow_untested)
        return needed_files(folder, part_of(blueprint, layers))

    return wanted


def _load(blueprint: Blueprint, part: WeightPart, dtype: torch.dtype) -> Any:
    """The causal model with identities in place of all that the part does not own.

    Loading stays transformers' own work (renames, fused experts, tied weights, dtype); safetensors are mapped, so
    what is not owned is never read. Any missing weight refuses: transformers would fill it at random with a warning.
    """
    folder, config = blueprint.folder, blueprint.config
    cut = _cut_class(blueprint, part)
    try:
        with view_of(folder, part) as view:
            model, report = cut.from_pretrained(
                view,
                config=config,
                dtype=dtype,
                output_loading_info=True,
                key_mapping=dict(part.renames) or None,
            )
    except (OSError, SafetensorError) as error:
        raise ShardRefused(f"The weights in {folder.name} cannot be read: {error}") from None
    missing = sorted({*report["missing_keys"], *(str(key) for key in report["mismatched_keys"])})
    if missing:
        raise ShardRefused(
            f"{len(missing)} weights of the layers {part.layers} are missing or misshapen in {folder.name}, "
            f"{missing[0]} among them: the shard would compute with random numbers."
        )
    left = [name for name, tensor in model.state_dict().items() if tensor.is_meta]
    if left:
        raise ShardRefused(f"{len(left)} weights were not loaded, {left[0]} among them.")
    return model.eval().requires_grad_(False)


def sketch(blueprint: Blueprint, part: WeightPart, dtype: torch.dtype) -> Any:
    """The same model on the meta device: every shape and dtype of the part, no memory, no weight file opened."""
    with torch.device("meta"):
        model = _cut_class(blueprint, part)._from_config(blueprint.config, dtype=dtype).eval().requires_grad_(False)
    # Some models keep a few weights in fp32; loading does that, building does not.
    for pattern, kept in model._get_dtype_plan(dtype).items():
        for name, parameter in model.named_parameters():
            if re.search(pattern.replace("*", ".*"), name):
                parameter.data = parameter.data.to(kept)
    return model


def _cut_class(blueprint: Blueprint, part: WeightPart) -> Any:
    """The model's class, whose instances hold the part alone. Raises ShardRefused for a model that cannot be cut."""
    config = blueprint.config
    family = family_of(config)
    is_head = part.layers.size == 0
    try:
        whole: Any = AutoModelForCausalLM._model_mapping[type(config)]
    except KeyError:
        raise ShardRefused(f"Models of type {config.model_type!r} do not generate text token by token.") from None

    class PartOfModel(whole):
        # Weights of other parts are in the file and not wanted here: no warning about each of them.
        _keys_to_ignore_on_load_unexpected = (r".*",)

        def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
            super().__init__(config, *args, **kwargs)
            base = self.base_model
            _check_anatomy(base, config.model_type, ("layers", "embed_tokens", family.final_norm))
            for index in range(blueprint.shape.n_layers):
                if index not in part.layers:
                    base.layers[index] = PipelineIdentityLayer()
            if not part.tail:
                setattr(base, family.final_norm, PipelineIdentityLayer())
                self.lm_head = PipelineIdentityLayer()
                self.all_tied_weights_keys: dict[str, str] = {}
            if not part.embeddings:
                base.embed_tokens = PipelineIdentityLayer()
            if not is_head:
                for name, value in family.neutral.items():
                    setattr(base, name, value)

    PartOfModel.__name__ = PartOfModel.__qualname__ = whole.__name__
    # transformers reads the source of a class's module to learn what it can do: of this one, only slow experts.
    PartOfModel.__module__ = whole.__module__
    return PartOfModel


def _check_anatomy(base: Any, model_type: str, names: tuple[str, ...]) -> None:
    absent = [name for name in names if not hasattr(base, name)]
    if absent:
        raise ShardRefused(f"Models of type {model_type!r} cannot be cut: their base model has no {absent[0]!r}.")
