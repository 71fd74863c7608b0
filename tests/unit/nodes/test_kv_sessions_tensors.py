"""The session store over real caches of real shards: its bytes are those of the tensors' memory."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from nodes.kv_cache import ShardCache
from nodes.kv_sessions import SessionCacheEntry, SessionCacheStore, StoreLimits
from nodes.layers import LayerRange
from nodes.shard import ModelShard
from tests.conftest import Clock

WHOLE = LayerRange(0, 4)


def storages(cache: ShardCache) -> dict[int, int]:
    """The memory behind a cache's tensors by address, found without the cache's own accounting."""
    found: dict[int, int] = {}
    for layer in cache.layers:
        for value in vars(layer).values():
            for tensor in value.values() if isinstance(value, dict) else [value]:
                if isinstance(tensor, torch.Tensor) and tensor.ndim > 1:
                    found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return found


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen3_next"])
def test_the_bytes_of_the_store_are_those_of_the_real_tensors(family: str, toy_folder: Any, clock: Clock) -> None:
    """Random sessions of a real shard (with a sliding window, with linear layers): after each step the bytes are
    those of the storages, shared by no two sessions, detached ones under their step included; in the end none are left.
    """
    shard = ModelShard.load(toy_folder(family), WHOLE)
    store = SessionCacheStore(StoreLimits(max_sessions=4, max_bytes=400_000), clock=clock)
    rng = random.Random(7)  # noqa: S311
    held: dict[str, ShardCache] = {}

    def check(*in_use: ShardCache) -> int:
        caches = {id(cache): cache for cache in (*held.values(), *in_use)}
        kept = [storages(cache) for cache in caches.values()]
        assert len({address for found in kept for address in found}) == sum(map(len, kept)), "sessions share memory"
        nbytes: int = store.snapshot()["stats"]["bytes"]
        assert nbytes == sum(sum(found.values()) for found in kept)
        return nbytes

    def step(entry: SessionCacheEntry, size: int, past_len: int | None) -> None:
        store.begin(entry, WHOLE, past_len)
        with torch.inference_mode():
            shard.forward(torch.randn(1, size, 64), past_len or 0, entry.cache)  # type: ignore[arg-type]
        assert store.commit(entry) == (past_len or 0) + size

    most = 0
    for _ in range(60):
        clock.advance(rng.choice([1.0, 11.0]))
        name = rng.choice("abcdef")
        if name in held and rng.random() < 0.7:
            past_len, size = held[name].tokens, rng.choice([1, 1, 4, 12])
            entry = store.take(name, past_len)
        else:
            past_len, size = None, rng.choice([3, 20, 33])
            entry = store.open(name, WHOLE, shard.new_cache, 1000 * size)
        running: ShardCache = entry.cache  # type: ignore[assignment]
        step(entry, size, past_len)
        held[name] = running
        if rng.random() < 0.2:
            store.evict([name])
        listed = {row["id"] for row in store.snapshot()["sessions"]}
        held = {other: cache for other, cache in held.items() if other in listed}
        most = max(most, check(running))
        store.done(entry)
        store.check_integrity()
        listed = {row["id"] for row in store.snapshot()["sessions"]}
        held = {other: cache for other, cache in held.items() if other in listed}
        check()
    assert most > 0
    assert store.snapshot()["stats"]["high_water_bytes"] >= most
    store.evict_all()
    held.clear()
    assert check() == 0
