"""The machine under the measurement: its cores, what it calls itself, and a clean environment for the contenders."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

#: Variables that set threads and waiting of torch's pools. Each contender gets its own, and none from outside.
_POOLS = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "TORCH_NUM")
_PACKAGES = ("torch", "transformers", "safetensors", "urllib3", "gunicorn", "Django", "llama-cpp-python")


def pin(cores: Sequence[int] | None = None, *, most: int = 2) -> list[int]:
    """Pins this process, and every one that it starts from here on, to the same cores; which they are.

    Raises OSError for a core that this process may not use.
    """
    chosen = sorted(cores) if cores else sorted(os.sched_getaffinity(0))[:most]
    os.sched_setaffinity(0, chosen)
    return chosen


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The user's environment without settings of compute pools and without a mesh's settings."""
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith((*_POOLS, "MESHNET_")) or name == "MESHNET_ALLOW_UNTESTED_MODELS"
    }


def describe(cores: Sequence[int]) -> dict[str, Any]:
    return {
        "cpu": _cpu_name(),
        "cores": list(cores),
        "cores_of_machine": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
        # Should be near 0: other work makes every number worse, and not equally so.
        "load_before": load(),
    }


def load() -> list[float]:
    """Processes that want a core, on average over 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def resident_bytes(pid: int) -> int | None:
    """Memory of a process as the kernel counts it, mapped weights included; None when it is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    match = re.search(r"^VmRSS:\s+(\d+) kB$", text, re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def _cpu_name() -> str:
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        match = None
    return match[1] if match else platform.processor()
