"""`manage.py kv_sessions`: the live sessions of the running nodes, once or until Ctrl-C."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from nodes import live, registry
from nodes.amounts import MISSING, human_bytes, human_seconds, parse_seconds
from nodes.errors import MeshnetError
from nodes.live import NodeSnapshot
from nodes.table import aligned
from nodes.watch import watch

DEFAULT_WATCH_SECONDS = 2.0
SHORTEST_WATCH_SECONDS = 0.2


class Command(BaseCommand):
    help = "Lists the live sessions that the running nodes hold, asked over HTTP."
    requires_system_checks = ()  # they would load the URLs of the whole head

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        kwargs.setdefault(
            "epilog",
            "Exit codes: 0 every node answered, or with --watch it was ended by Ctrl-C; 1 a node or the mesh could not "
            "be reached; 2 wrong usage.",
        )
        return super().create_parser(prog_name, subcommand, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--node", action="append", default=[], metavar="URL", help="Only this node; may be repeated."
        )
        how = parser.add_mutually_exclusive_group()
        how.add_argument("--json", action="store_true", help="Print JSON instead of tables.")
        how.add_argument(
            "--watch",
            nargs="?",
            type=_interval,
            const=DEFAULT_WATCH_SECONDS,
            metavar="SECONDS",
            help=f"Show them anew every so many seconds ({DEFAULT_WATCH_SECONDS:g}), in place, until Ctrl-C.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            clients = live.choose(registry.node_clients(), options["node"])
        except MeshnetError as error:
            raise CommandError(error.detail) from None
        if options["watch"] is not None:
            self.stdout.ending = ""  # Django would end each piece with a line
            watch(lambda: _screen(live.fetch(clients)), self.stdout, options["watch"])
            return
        snapshots = live.fetch(clients)
        if options["json"]:
            self.stdout.write(json.dumps({"nodes": [_as_json(snapshot) for snapshot in snapshots]}, indent=2))
        else:
            self.stdout.write(_tables(snapshots))
        failed = [snapshot.error for snapshot in snapshots if snapshot.error]
        if failed:
            raise CommandError("\n".join(failed))


def _interval(text: str) -> float:
    try:
        seconds = parse_seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if seconds < SHORTEST_WATCH_SECONDS:
        raise argparse.ArgumentTypeError(f"at least {SHORTEST_WATCH_SECONDS:g} seconds: each look asks every node.")
    return seconds


def _screen(snapshots: Sequence[NodeSnapshot]) -> str:
    """What --watch shows: a node that is down is a line, and no reason to end."""
    errors = [snapshot.error for snapshot in snapshots if snapshot.error]
    problems = "\n\n" + "\n".join(errors) if errors else ""
    return f"{time.strftime('%H:%M:%S')}\n\n{_tables(snapshots)}{problems}"


def _tables(snapshots: Sequence[NodeSnapshot]) -> str:
    return f"{_nodes_table(snapshots)}\n\n{_sessions_table(snapshots)}"


def _as_json(snapshot: NodeSnapshot) -> dict[str, Any]:
    return {
        "url": snapshot.url,
        "state": snapshot.state,
        "error": snapshot.error,
        "limits": snapshot.limits,
        "stats": snapshot.stats,
        "sessions": snapshot.entries,
    }


def _nodes_table(snapshots: Sequence[NodeSnapshot]) -> str:
    rows = []
    for snapshot in snapshots:
        slots = size = ttl = MISSING
        if snapshot.sessions is not None:
            limits = snapshot.limits
            slots = "/".join(map(str, snapshot.slots))
            size = f"{human_bytes(snapshot.stats.get('bytes'))} of {human_bytes(limits.get('max_bytes'))}"
            ttl = human_seconds(limits.get("ttl_seconds"))
        rows.append((snapshot.url, snapshot.state, snapshot.layers or MISSING, slots, size, ttl))
    return aligned(("NODE", "STATE", "LAYERS", "SESSIONS", "BYTES", "TTL"), rows, right=("SESSIONS",))


def _sessions_table(snapshots: Sequence[NodeSnapshot]) -> str:
    rows = [
        (
            session,
            snapshot.url,
            entry.get("layers", snapshot.layers),
            entry.get("past_len", "?"),
            human_bytes(entry.get("bytes")),
            human_seconds(entry.get("age_seconds")),
            human_seconds(entry.get("idle_seconds")),
            human_seconds(entry.get("expires_in_seconds")),
            entry.get("hits", "?"),
            "yes" if entry.get("busy") else "no",
        )
        for session, held in live.by_session(snapshots).items()
        for snapshot, entry in held
    ]
    if not rows:
        return "No live sessions."
    return aligned(
        ("SESSION", "NODE", "LAYERS", "TOKENS", "BYTES", "AGE", "IDLE", "EXPIRES IN", "HITS", "BUSY"),
        rows,
        right=("TOKENS", "BYTES", "AGE", "IDLE", "EXPIRES IN", "HITS"),
    )
