"""What an operator may change on a node's page, read from its form."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from nodes.amounts import is_number, parse_bytes, parse_seconds
from nodes.errors import BadRequest
from nodes.snapshots import SeenNode


@dataclass(frozen=True)
class LimitField:
    """One limit of a running node, with its present value as the form shows it."""

    name: str
    label: str
    value: str
    help: str


@dataclass(frozen=True)
class NodeError:
    at: datetime | None
    code: str
    detail: str


def _count(text: str) -> int:
    if not text.strip().isascii() or not text.strip().isdecimal():
        raise ValueError(f"{text!r:.60} is not a whole number.")
    return int(text)


_LIMITS: dict[str, tuple[str, str, Callable[[str], Any]]] = {
    "ttl_seconds": ("Time to live", "A session unused for longer is dropped: seconds, or 90s, 10m, 1h.", parse_seconds),
    "max_sessions": ("Sessions", "The most that it holds at once; a lower number takes idle sessions only.", _count),
    "max_bytes": ("Cache bytes", "The most that it holds at once: bytes, or 512MiB, 4GiB.", parse_bytes),
}  # fmt: skip


def limit_fields(node: SeenNode) -> list[LimitField]:
    limits = node.known.limits
    return [
        LimitField(name, label, f"{limits[name]:.15g}" if is_number(limits.get(name)) else "", help_text)
        for name, (label, help_text, _) in _LIMITS.items()
    ]


def limit_changes(form: Mapping[str, Any], node: SeenNode | None) -> dict[str, Any]:
    """What the form asks for that is not so already. Raises BadRequest that names a field that cannot be read."""
    current = node.known.limits if node is not None else {}
    changes: dict[str, Any] = {}
    for name, (label, _, parse) in _LIMITS.items():
        text = str(form.get(name, "")).strip()[:100]
        if not text:
            continue
        try:
            value = parse(text)
        except ValueError as error:
            raise BadRequest(f"{label}: {error}") from None
        if value != current.get(name):
            changes[name] = value
    return changes


def last_errors(node: SeenNode) -> list[NodeError]:
    """The node's own list of its last faults, newest first."""
    work = (node.known.status or {}).get("work")
    errors = work.get("errors") if isinstance(work, dict) else None
    return [
        NodeError(_moment(error.get("at")), str(error.get("code", ""))[:60], str(error.get("detail", ""))[:200])
        for error in (errors if isinstance(errors, list) else [])
        if isinstance(error, dict)
    ]


def started_at(node: SeenNode) -> datetime | None:
    return _moment((node.known.status or {}).get("started_at"))


def _moment(value: Any) -> datetime | None:
    try:
        return datetime.fromtimestamp(value, tz=UTC)
    except (TypeError, ValueError, OverflowError, OSError):
        return None
