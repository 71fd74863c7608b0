"""What a plan costs a head, by the number of nodes: real time and memory of the real directory and planner."""

from __future__ import annotations

import json
import random
import statistics
import time
import tracemalloc
from collections.abc import Sequence
from typing import Any, cast

from generation.directory import NodeDirectory
from generation.route import plan
from meshsite.simulation.client import SimulatedClient
from meshsite.simulation.cost import Cost
from meshsite.simulation.node import FINGERPRINT, SimulatedNode
from meshsite.simulation.series import percentile
from meshsite.simulation.virtual_time import VirtualTime
from nodes.client import NodeClient
from nodes.kv_sessions import StoreLimits
from nodes.layers import LayerRange, split_evenly
from nodes.live import NodeSnapshot
from nodes.wire import Timings

#: What a real status holds beside what a plan needs; a head keeps all of it.
_REST: dict[str, Any] = {
    "model_type": "llama", "is_tail": False, "hidden_size": 8192, "vocab_size": 128_256, "device": "cuda",
    "kv_bytes_per_token": 65_536, "kv_bytes_of_full_context": 8_589_934_592, "rss_bytes": 9_000_000_000,
    "started_at": 1_790_000_000.0, "versions": {"meshnet": "0", "torch": "0", "transformers": "0", "python": "0"},
    "work": {"steps": {"prefill": 1, "decode": 1, "stateless": 0}, "tokens": 1, "errors": {}, "turns": 1},
}  # fmt: skip


def planning(sizes: Sequence[int], rounds: int, seed: int) -> list[dict[str, Any]]:
    """A row for each number of nodes. Every second node was measured by this head, and its speed moves."""
    return [_row(count, rounds, seed) for count in sizes]


def status_like(number: int) -> dict[str, Any]:
    """A status as long as a real one."""
    clock, cost = VirtualTime(), Cost()
    node = SimulatedNode(f"http://10.0.0.{number}:8001", LayerRange(0, 16), clock, cost, StoreLimits())
    return {**node.status(), **_REST}


def _row(count: int, rounds: int, seed: int) -> dict[str, Any]:
    clock, cost = VirtualTime(), Cost()
    rng = random.Random(seed)  # noqa: S311  # nothing secret
    stretches = split_evenly(cost.n_layers, cost.stretches)
    limits = StoreLimits(max_sessions=8)
    nodes = [
        SimulatedNode(f"http://10.0.{n // 250}.{n % 250}:8001", stretches[n % len(stretches)], clock, cost, limits)
        for n in range(count)
    ]
    clients = [SimulatedClient(node, clock, cost.trip_seconds(rng), 1) for node in nodes]
    # As they come over the wire: no two nodes share a value.
    texts = [json.dumps({**node.status(), **_REST}) for node in nodes]
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    heard = [
        NodeSnapshot(node.url, json.loads(text), None, None, "ready") for node, text in zip(nodes, texts, strict=True)
    ]
    directory = NodeDirectory(cast(list[NodeClient], clients), clock=clock.now, fetch=lambda _: [], threads=clock)
    directory.learn(heard)
    del heard
    directory.ready()
    kept = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    ready_ms, plan_ms = [], []
    for _ in range(rounds):
        for node in rng.sample(nodes, max(1, count // 4)):
            directory.measured(node.url, node.layers.size, 1, rng.uniform(10, 30), Timings(0.0, rng.uniform(5, 20)))
        begun = time.perf_counter()
        found = directory.ready()
        between = time.perf_counter()
        route = plan(found, fingerprint=FINGERPRINT, dtype="float32", n_layers=cost.n_layers, prefer=rng.choice)
        plan_ms.append((time.perf_counter() - between) * 1e3)
        ready_ms.append((between - begun) * 1e3)
        directory.take(route)
    return {
        "nodes": count,
        "look_at_known_ms": round(statistics.median(ready_ms), 3),
        "look_at_known_ms_p99": round(percentile(ready_ms, 99), 3),
        "plan_ms": round(statistics.median(plan_ms), 3),
        "plan_ms_p99": round(percentile(plan_ms, 99), 3),
        "directory_bytes_per_node": round(kept / count),
    }
