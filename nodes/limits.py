"""Limits of a running node, as `PATCH /limits` changes them. They last until the node's restart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nodes.errors import BadRequest
from nodes.kv_sessions import StoreLimits

#: Threads for each slot that steps on their way to other nodes, and heads that wait for a step's result, may hold. A
#: session has up to three at once: the node behind this one acknowledges a step when the next one is already here.
HELD_PER_SLOT = 4
#: By field: smallest and largest value.
_RANGES: dict[str, tuple[float, float]] = {
    "ttl_seconds": (0.1, 1e9),
    "max_sessions": (1, 1e6),
    "max_bytes": (1, 1e18),
}


def changed_limits(current: StoreLimits, changes: Any, *, most_sessions: int) -> StoreLimits:
    """The limits with the changes of a JSON body. Raises BadRequest that names the field; changes nothing itself.

    most_sessions: as many as the node's server has threads for.
    """
    if not isinstance(changes, dict) or not changes:
        raise BadRequest(f"Name at least one of {', '.join(_RANGES)}.")
    unknown = set(changes) - set(_RANGES)
    if unknown:
        raise BadRequest(f"Unknown limit {sorted(unknown)[0]!r:.80}; there are {', '.join(_RANGES)}.")
    values: dict[str, Any] = {}
    for name, value in changes.items():
        low, high = _RANGES[name]
        whole = name != "ttl_seconds"
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
            raise BadRequest(f"{name} must be a {'whole ' if whole else ''}number.")
        if not low <= value <= high:
            raise BadRequest(f"{name} must be between {low:g} and {high:g}.")
        values[name] = value if whole else float(value)
    if values.get("max_sessions", 0) > most_sessions:
        raise BadRequest(
            f"max_sessions can be {most_sessions} at most while the node runs: it was started with threads for no "
            "more. Restart it with a higher MESHNET_KV_MAX_SESSIONS."
        )
    return replace(current, **values)
