"""`manage.py kv_stats`: what the running nodes have counted since their start."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from nodes import live, registry
from nodes.amounts import MISSING, human_bytes, human_seconds
from nodes.errors import MeshnetError
from nodes.live import NodeSnapshot
from nodes.table import aligned


class Command(BaseCommand):
    help = (
        "Shows what each running node has counted since its start, asked over HTTP: cache hits, misses and evictions "
        "by reason, bytes, steps, tokens, time."
    )
    requires_system_checks = ()  # they would load the URLs of the whole head

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        kwargs.setdefault(
            "epilog",
            "Exit codes: 0 every node answered; 1 a node or the mesh could not be reached; 2 wrong usage.",
        )
        return super().create_parser(prog_name, subcommand, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--node", action="append", default=[], metavar="URL", help="Only this node; may be repeated."
        )
        parser.add_argument("--json", action="store_true", help="Print JSON instead of tables.")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            snapshots = live.fetch(live.choose(registry.node_clients(), options["node"]))
        except MeshnetError as error:
            raise CommandError(error.detail) from None
        if options["json"]:
            self.stdout.write(json.dumps({"nodes": [_as_json(snapshot) for snapshot in snapshots]}, indent=2))
        else:
            self.stdout.write(f"{_caches(snapshots)}\n\n{_work(snapshots)}\n\n{_reasons(snapshots)}")
        failed = [snapshot.error for snapshot in snapshots if snapshot.error]
        if failed:
            raise CommandError("\n".join(failed))


def _as_json(snapshot: NodeSnapshot) -> dict[str, Any]:
    status = snapshot.status or {}
    return {
        "url": snapshot.url,
        "state": snapshot.state,
        "error": snapshot.error,
        "layers": snapshot.layers,
        "boot_id": status.get("boot_id"),
        "started_at": status.get("started_at"),
        "limits": snapshot.limits,
        "stats": snapshot.stats,
        "work": _part(status, "work"),
    }


def _caches(snapshots: Sequence[NodeSnapshot]) -> str:
    """How full the caches are, were at most, and how often they helped."""
    rows = []
    for snapshot in snapshots:
        stats, limits = snapshot.stats, snapshot.limits
        slots = f"{_number(stats.get('sessions'))}/{_number(limits.get('max_sessions'))}"
        rows.append(
            (
                snapshot.url,
                snapshot.state,
                snapshot.layers or MISSING,
                slots if snapshot.sessions is not None else MISSING,
                _number(stats.get("high_water_sessions")),
                human_bytes(stats.get("bytes")),
                human_bytes(stats.get("high_water_bytes")),
                human_bytes(limits.get("max_bytes")),
                _number(stats.get("hits")),
                _total(stats, "misses"),
                _total(stats, "evictions"),
            )
        )
    numbers = ("SESSIONS", "MOST", "BYTES", "MOST BYTES", "LIMIT", "HITS", "MISSES", "EVICTED")
    return aligned(("NODE", "STATE", "LAYERS", *numbers), rows, right=numbers)


def _work(snapshots: Sequence[NodeSnapshot]) -> str:
    """What was computed, and how long steps took and waited."""
    rows = []
    for snapshot in snapshots:
        work = _part(snapshot.status or {}, "work")
        counts = _part(work, "steps")
        count = _sum(counts)
        rows.append(
            (
                snapshot.url,
                *(_number(counts.get(mode)) for mode in ("prefill", "decode", "stateless")),
                _number(work.get("tokens")),
                *(_time(work.get(f"{part}_ms")) for part in ("compute", "queue")),
                *(_per_step(work.get(f"{part}_ms"), count) for part in ("compute", "queue")),
                _total(work, "refusals"),
            )
        )
    steps = ("PREFILLS", "DECODES", "STATELESS", "TOKENS")
    times = ("COMPUTE", "QUEUE", "COMPUTE/STEP", "QUEUE/STEP", "REFUSED")
    return aligned(("NODE", *steps, *times), rows, right=(*steps, *times))


def _reasons(snapshots: Sequence[NodeSnapshot]) -> str:
    """Every reason that was counted at all, a line each."""
    rows = [
        (snapshot.url, kind, reason, count)
        for snapshot in snapshots
        for kind, counts in (
            ("miss", _part(snapshot.stats, "misses")),
            ("eviction", _part(snapshot.stats, "evictions")),
            ("refusal", _part(_part(snapshot.status or {}, "work"), "refusals")),
        )
        for reason, count in counts.items()
        if _is_count(count) and count
    ]
    if not rows:
        return "No misses, evictions or refusals."
    return aligned(("NODE", "WHAT", "REASON", "COUNT"), rows, right=("COUNT",))


def _part(values: dict[str, Any], name: str) -> dict[str, Any]:
    """An object inside a node's answer; empty where an older node does not send it."""
    part = values.get(name)
    return part if isinstance(part, dict) else {}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any) -> str:
    return str(value) if _is_count(value) else MISSING


def _sum(counts: dict[str, Any]) -> int:
    return sum(count for count in counts.values() if _is_count(count))


def _total(values: dict[str, Any], name: str) -> str:
    return str(_sum(_part(values, name))) if isinstance(values.get(name), dict) else MISSING


def _time(milliseconds: Any) -> str:
    return human_seconds(milliseconds / 1e3) if isinstance(milliseconds, int | float) else MISSING


def _per_step(milliseconds: Any, steps: int) -> str:
    return f"{milliseconds / steps:.1f} ms" if isinstance(milliseconds, int | float) and steps else MISSING
