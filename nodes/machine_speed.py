"""How fast this machine reads weights in a decode step, measured within a second, and its free memory. Loads torch.

One row is multiplied with one matrix after the other, together larger than any cache, as a node multiplies them: on
the CPU in fp32 through blocked weights (nodes/blocked_linear.py). In a process of its own: `python -m
nodes.machine_speed --device cpu --threads 2` prints the bytes per second.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from math import floor, inf, log10

import torch
from torch import nn

from nodes.blocked_linear import block_weights
from nodes.framing import DTYPES
from nodes.memory import available_bytes

#: 12 matrices of 2048 x 2048 are 200 MB in fp32, which no cache of a usual machine holds.
WIDTH = 2048
MATRICES = 12
SECONDS = 0.5


@torch.inference_mode()
def measure_speed(
    *,
    device: str = "cpu",
    dtype: str = "float32",
    threads: int = 0,
    width: int = WIDTH,
    matrices: int = MATRICES,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Bytes of weights per second, to two digits: it is not more exact. Sets this process's threads, unless 0.

    Not beside other work of this process: it belongs into a process of its own.
    """
    if threads:
        torch.set_num_threads(threads)
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(matrices)))
    model = model.to(device=device, dtype=DTYPES[dtype]).eval()
    size = sum(parameter.nbytes for parameter in model.parameters())
    block_weights(model)
    row = torch.ones(1, width, device=device, dtype=DTYPES[dtype])
    _pass(model, row)  # the first one sets up the pool, or the GPU's library
    fastest, end = inf, clock() + seconds
    while fastest == inf or clock() < end:
        start = clock()
        _pass(model, row)
        # What else runs on the machine only ever makes a pass slower.
        fastest = min(fastest, clock() - start)
    return two_digits(size / fastest)


def free_bytes(device: str) -> int | None:
    """Memory that is free where this device computes; None where nobody says."""
    if torch.device(device).type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return available_bytes()


def two_digits(value: float) -> float:
    return round(value, 1 - floor(log10(value)))


def _pass(model: nn.Module, row: torch.Tensor) -> None:
    for layer in model.children():
        last = layer(row)
    float(last.flatten()[0])  # waits for a GPU


def main() -> None:
    parser = argparse.ArgumentParser(description="Bytes of weights that a decode step reads per second.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=sorted(DTYPES))
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    print(measure_speed(device=options.device, dtype=options.dtype, threads=options.threads))  # noqa: T201


if __name__ == "__main__":
    main()
