"""What a machine of a Ray cluster measures of itself before layers are split over it."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

SECONDS = 50.0


def measure(folder: str) -> dict[str, Any]:
    """Bytes per second of a decode step, the cores and, where Ray gave a GPU, that GPU's bytes.

    Raises OSError, ValueError or SubprocessError when there is no measuring it.
    """
    gpu_bytes = _gpu_bytes()
    device = "cuda" if gpu_bytes else "cpu"
    # In a process of its own, which gives torch's memory back when it ends.
    command = [sys.executable, "-m", "nodes.machine_speed", "--device", device]
    printed = subprocess.run(  # noqa: S603  # a module of our own
        command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=True
    ).stdout
    return {"bytes_per_second": float(printed), "cores": len(os.sched_getaffinity(0)), "gpu_bytes": gpu_bytes}


def _gpu_bytes() -> int:
    import ray

    if not ray.get_gpu_ids():
        return 0
    command = [
        "nvidia-smi",
        f"--id={ray.get_gpu_ids()[0]}",
        "--query-gpu=memory.total",
        "--format=csv,noheader,nounits",
    ]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True).stdout  # noqa: S603
    return int(printed.strip()) * 2**20
