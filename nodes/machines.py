"""A machine that may hold layers: what a split by capacity (nodes/split.py) and an engine (meshsite/engine.py) know."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """`memory_bytes` is what nodes may use of the memory in which they compute: the GPU's where `gpus` is not 0.

    `bytes_per_second` is how fast it reads weights in a decode step, which is what such a step costs; measured.
    """

    name: str
    memory_bytes: int
    bytes_per_second: float
    cpus: float = 1.0
    gpus: float = 0.0
