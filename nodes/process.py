"""What a node says of its own process: versions and memory."""

from __future__ import annotations

import platform
from pathlib import Path

import torch
import transformers

VERSION = "0.1.0"


def versions() -> dict[str, str]:
    return {
        "meshnet": VERSION,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


def resident_bytes() -> int:
    """Memory of this process that is in RAM (Linux; 0 elsewhere)."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    import resource

    return pages * resource.getpagesize()
