from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
import transformers

from nodes import proof
from nodes.errors import ShardRefused
from nodes.layers import LayerRange
from nodes.shard import ModelShard
from tests import toys


@pytest.mark.parametrize("family", sorted(toys.CONFIGS))
def test_good_shards_of_every_family_pass(family: str, toy_folder: Any) -> None:
    for layers in (LayerRange(0, 2), LayerRange(3, 4)):
        verdict = proof.prove(ModelShard.load(toy_folder(family), layers))
        assert verdict.supports_kv_cache
        assert verdict.footprint.bytes(20) > 0


def shard_with(toy_folder: Any, change: Any) -> ModelShard:
    shard = ModelShard.load(toy_folder("llama"), LayerRange(0, 2))
    change(shard._model)
    return shard


def test_a_forward_that_touches_its_input_on_every_shard_is_refused(toy_folder: Any) -> None:
    def scale(model: Any) -> None:
        original = type(model.model).forward
        scaled = type("Scaled", (type(model.model),), {})
        scaled.forward = lambda self, inputs_embeds=None, **kw: original(self, inputs_embeds=inputs_embeds * 2, **kw)
        model.model.__class__ = scaled

    with pytest.raises(ShardRefused, match="no layer"):
        proof.prove(shard_with(toy_folder, scale))


def test_layers_that_ignore_their_cache_are_served_without_one(toy_folder: Any, caplog: Any) -> None:
    def forget(model: Any) -> None:
        for layer in model.model.layers[:2]:
            original = layer.self_attn.forward
            layer.self_attn.forward = lambda *args, original=original, **kw: original(*args, **{**kw, "cache": None})

    with caplog.at_level(logging.WARNING):
        verdict = proof.prove(shard_with(toy_folder, forget))
    assert verdict == proof.Verdict(supports_kv_cache=False)
    assert len(caplog.records) == 1


def test_layers_that_reject_the_cache_argument_are_served_without_one(toy_folder: Any) -> None:
    def reject(model: Any) -> None:
        for layer in model.model.layers[:2]:
            original = layer.forward

            def forward(hidden: Any, original: Any = original, **kw: Any) -> Any:
                if kw.pop("cache", None) is not None:
                    raise TypeError("unexpected keyword argument 'cache'")
                return original(hidden, **kw)

            layer.forward = forward

    assert not proof.prove(shard_with(toy_folder, reject)).supports_kv_cache


def test_layers_that_depend_on_their_neighbours_are_refused(toy_folder: Any) -> None:
    def couple(model: Any) -> None:
        memory: dict[str, torch.Tensor] = {}
        first, second = model.model.layers[0], model.model.layers[1]
        one, two = first.forward, second.forward

        def remember(hidden: torch.Tensor, **kw: Any) -> torch.Tensor:
            memory["sum"] = memory.get("sum", torch.zeros(())) + 1
            return one(hidden, **kw) * memory["sum"]

        first.forward, second.forward = remember, two

    with pytest.raises(ShardRefused, match="cannot be cut"):
        proof.prove(shard_with(toy_folder, couple))


def test_weights_that_give_nan_are_refused(toy_folder: Any) -> None:
    def spoil(model: Any) -> None:
        model.model.layers[1].mlp.down_proj.weight.fill_(float("nan"))

    with pytest.raises(ShardRefused, match="NaN"):
        proof.prove(shard_with(toy_folder, spoil))


@pytest.mark.parametrize("family", sorted(toys.CONFIGS))
def test_the_footprint_is_what_a_cache_of_any_length_really_takes(family: str, toy_folder: Any) -> None:
    shard = ModelShard.load(toy_folder(family), LayerRange(0, 3))
    footprint = proof.prove(shard).footprint
    cache = shard.new_cache()
    with torch.inference_mode():
        for piece in (1, 3, 20, *[1] * 10):
            shard.forward(torch.randn(1, piece, 64), cache.tokens, cache)
            # A window may hold the storage of a few tokens more than it keeps.
            assert footprint.bytes(cache.tokens) <= cache.nbytes() <= 1.25 * footprint.bytes(cache.tokens)


def test_bytes_per_token_are_those_of_layers_that_grow(toy_folder: Any) -> None:
    of = {
        name: proof.prove(ModelShard.load(toy_folder(name), LayerRange(0, 3))).footprint
        for name in ("llama", "mistral")
    }
    assert of["llama"].per_token == 3 * 2 * 2 * 16 * 4
    assert of["llama"].bytes(100) == 100 * of["llama"].per_token
    assert of["mistral"].per_token == 0
    assert of["mistral"].bytes(100) == of["mistral"].bytes(7) == 7 * of["llama"].per_token


def test_nan_in_a_step_on_a_cache_is_no_agreement(toy_folder: Any) -> None:
    def spoil(model: Any) -> None:
        layer = model.model.layers[1]
        original = layer.forward

        def forward(hidden: Any, **kw: Any) -> Any:
            output = original(hidden, **kw)
            return output if kw.get("cache") is None else output * float("nan")

        layer.forward = forward

    assert not proof.prove(shard_with(toy_folder, spoil)).supports_kv_cache


def test_nan_in_one_half_is_no_agreement(toy_folder: Any) -> None:
    shard = ModelShard.load(toy_folder("llama"), LayerRange(0, 2))
    forward = shard.forward

    def spoil(hidden: Any, past_len: int, cache: Any, layers: Any = None) -> Any:
        output = forward(hidden, past_len, cache, layers)
        return output * float("nan") if layers == LayerRange(1, 2) else output

    shard.forward = spoil  # type: ignore[method-assign]
    with pytest.raises(ShardRefused, match="cannot be cut"):
        proof.prove(shard)


def test_a_lack_of_memory_says_nothing_about_the_model(toy_folder: Any) -> None:
    """Else a node that once started on a full machine would serve without a cache for good."""

    def fail(model: Any) -> None:
        layer = model.model.layers[1]
        original = layer.forward

        def forward(hidden: Any, **kw: Any) -> Any:
            if kw.get("cache") is not None:
                raise torch.OutOfMemoryError("on purpose")
            return original(hidden, **kw)

        layer.forward = forward

    with pytest.raises(torch.OutOfMemoryError):
        proof.prove(shard_with(toy_folder, fail))


def deep(folder: Any) -> ModelShard:
    """Layers enough for 16-bit rounding to grow into something that looks like an error."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**{**toys._COMMON, "num_hidden_layers": 16})
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for name, parameter in model.named_parameters():
        if parameter.ndim >= 2:
            # Attention that is nearly a choice of one position: a little rounding chooses another.
            parameter.data.mul_(100 if "q_proj" in name or "k_proj" in name else 10)
    model.save_pretrained(folder)
    return ModelShard.load(folder, LayerRange(1, 16), dtype=torch.bfloat16)


def test_a14_rounding_that_layers_magnify_is_no_wrong_cache(tmp_path: Any) -> None:
    shard = deep(tmp_path)
    hidden = torch.randn(1, 20, 64, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    with torch.inference_mode():
        cache = shard.new_cache()
        pieces = [shard.forward(piece, cache.tokens, cache) for piece in hidden.split(proof.PIECES, dim=1)]
        error = proof.difference(torch.cat(pieces, dim=1), shard.forward(hidden, 0, None))
    assert error > proof.TOLERANCE[torch.bfloat16]  # else this test shows nothing
    assert proof.prove(shard) == proof.Verdict(True, cache.footprint())
    assert not any(block._forward_hooks or block._forward_pre_hooks for block in shard.blocks)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", sorted(toys.CONFIGS))
def test_a14_good_shards_of_every_family_pass_in_16_bit(family: str, dtype: torch.dtype, toy_folder: Any) -> None:
    assert proof.prove(ModelShard.load(toy_folder(family), LayerRange(1, 4), dtype=dtype)).supports_kv_cache


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "gemma3_text"])
def test_a01_masks_from_a_layer_of_another_shard_are_found_in_every_format(
    family: str, dtype: torch.dtype, toy_folder: Any, monkeypatch: Any
) -> None:
    shard = ModelShard.load(toy_folder(family), LayerRange(2, 4), dtype=dtype)
    sparse = shard.new_cache

    def plain(layers: LayerRange | None = None) -> Any:
        cache = sparse(layers)
        for index, layer in enumerate(transformers.DynamicCache(config=shard._config).layers):
            if index not in shard.layers:
                cache.layers[index] = layer  # an empty slot where a dummy belongs
        return cache

    monkeypatch.setattr(shard, "new_cache", plain)
    assert not proof.prove(shard).supports_kv_cache
