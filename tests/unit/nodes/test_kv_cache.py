from __future__ import annotations

from typing import Any

import pytest
import torch

from nodes.layers import LayerRange
from nodes.shard import ModelShard


def run(shard: ModelShard, *pieces: int) -> Any:
    cache = shard.new_cache()
    with torch.inference_mode():
        for piece in pieces:
            shard.forward(torch.randn(1, piece, 64), cache.tokens, cache)
    return cache


def test_bytes_are_those_of_keys_and_values(toy_folder: Any) -> None:
    shard = ModelShard.load(toy_folder("llama"), LayerRange(0, 2))
    # 2 layers, keys and values, 2 heads of 16 values, 4 bytes
    assert run(shard, 20).nbytes() == 20 * 2 * 2 * 2 * 16 * 4
    assert run(shard, 12, 4, *[1] * 4).nbytes() == 20 * 2 * 2 * 2 * 16 * 4


def test_a04_a_sliding_window_knows_the_whole_length_and_stops_growing(toy_folder: Any) -> None:
    shard = ModelShard.load(toy_folder("mistral"), LayerRange(0, 2))
    window = 7 * 2 * 2 * 2 * 16 * 4
    for pieces in ((20,), (12, 4, 4), (6, 14), (300,)):
        cache = run(shard, *pieces)
        assert cache.tokens == cache.get_seq_length() == sum(pieces)
        assert cache.nbytes() <= 1.25 * window, "a window must not keep the storage of the whole prompt alive"
    assert run(shard, 8, *[1] * 30).nbytes() == run(shard, 8, *[1] * 60).nbytes()


def test_d12_nothing_that_is_cached_requires_gradients(toy_folder: Any) -> None:
    shard = ModelShard.load(toy_folder("llama"), LayerRange(0, 2))
    cache = run(shard, 5, *[1] * 50)
    assert cache.tensors()
    assert not any(tensor.requires_grad for tensor in cache.tensors())


def test_layers_of_other_shards_hold_nothing(toy_folder: Any) -> None:
    cache = run(ModelShard.load(toy_folder("llama"), LayerRange(2, 4)), 5)
    assert [layer.keys is not None for layer in cache.layers] == [False, False, True, True]


@pytest.mark.parametrize("family", ["qwen3_next", "lfm2"])
def test_states_of_linear_layers_are_counted_and_do_not_grow(family: str, toy_folder: Any) -> None:
    shard = ModelShard.load(toy_folder(family), LayerRange(0, 2))
    few, many = run(shard, 10), run(shard, 10, *[1] * 40)
    assert 0 < few.nbytes() == many.nbytes()
