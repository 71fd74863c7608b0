"""How seconds and bytes are written for people and read from them."""

from __future__ import annotations

import re
from typing import Any

#: What stands where a node did not say a number.
MISSING = "-"

_SIZES = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_seconds(text: str) -> float:
    """`"90"`, `"1.5s"`, `"10m"`, `"1h"` or `"2d"` -> seconds. Raises ValueError on anything else."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)\s*([smhd]?)", text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a stretch of time: write seconds, or 90s, 10m, 1h, 2d.")
    return float(match[1]) * _UNITS[match[2]]


def parse_bytes(text: str) -> int:
    """`"8GiB"`, `"8 GB"`, `"8192MiB"`, `"1.5TiB"` or bytes -> bytes. Raises ValueError on anything else and on 0."""
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)\s*([A-Za-z]*)", text.strip(), re.ASCII)
    size = _SIZES.get(match[2].lower()) if match is not None else None
    if match is None or size is None:
        # A bare G would be a guess between two numbers that are 7 % apart.
        raise ValueError(f"{text!r} is not a size: write bytes, or 8GiB, 8GB, 8192MiB.")
    count = int(float(match[1]) * size) if "." in match[1] else int(match[1]) * size
    if count < 1:
        raise ValueError(f"{text!r} is no memory at all.")
    return count


def human_seconds(seconds: Any) -> str:
    """3.21 -> `3.2 s`, 200 -> `3 m 20 s`, 7500 -> `2 h 5 m`; whatever is not a number -> MISSING."""
    if not is_number(seconds):
        return MISSING
    if seconds < 10:
        return f"{max(seconds, 0.0):.1f} s"
    whole = round(seconds)
    for size, unit, below, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            large, rest = whole // size, whole % size // below
            return f"{large} {unit} {rest} {small}" if rest else f"{large} {unit}"
    return f"{whole} s"


def human_bytes(count: Any) -> str:
    """1536 -> `1.5 KiB`; whatever is not a number -> MISSING."""
    if not is_number(count):
        return MISSING
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"


def is_number(value: Any) -> bool:
    """Whether there is a finite number in a node's JSON."""
    # A node's JSON may say true, null or NaN where a number belongs; a page must not fail over it.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < float("inf")
