"""How long a plan over many nodes takes: `python -m tests.measure_plan`. Milliseconds, medians of 50.

Two meshes: one as operators build them (stretches of equal size, many replicas), and the worst one: every node holds
another stretch, so that every layer is a joint.
"""

from __future__ import annotations

import random
import statistics
import sys
import time

from generation.route import RouteNode, plan
from nodes.layers import LayerRange, split_evenly


def nodes(count: int, n_layers: int, spans: list[LayerRange]) -> list[RouteNode]:
    rng = random.Random(1)  # noqa: S311
    return [
        RouteNode(
            f"http://10.0.{index // 250}.{index % 250}:8001",
            "m",
            "float32",
            spans[index % len(spans)],
            n_layers,
            4096,
            hop_ms=rng.uniform(0.5, 20),
            layer_ms=rng.uniform(0.1, 5),
            load=rng.randrange(8),
        )
        for index in range(count)
    ]


def median_ms(mesh: list[RouteNode], n_layers: int) -> float:
    times = []
    for _ in range(50):
        begun = time.perf_counter()
        plan(mesh, fingerprint="m", dtype="float32", n_layers=n_layers, prefer=random.choice)
        times.append((time.perf_counter() - begun) * 1e3)
    return statistics.median(times)


def main() -> None:
    rng = random.Random(2)  # noqa: S311
    for count in (10, 100, 1000):
        for n_layers in (30, 80):
            even = nodes(count, n_layers, split_evenly(n_layers, 5))
            spans = [LayerRange(0, n_layers)] + [
                LayerRange(*sorted(rng.sample(range(n_layers + 1), 2))) for _ in range(count - 1)
            ]
            mixed = nodes(count, n_layers, spans)
            sys.stdout.write(
                f"{count:5} nodes, {n_layers} layers: {median_ms(even, n_layers):6.2f} ms in 5 stretches, "
                f"{median_ms(mixed, n_layers):6.2f} ms when each holds another\n"
            )


if __name__ == "__main__":
    main()
