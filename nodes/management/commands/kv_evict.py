"""`manage.py kv_evict`: takes sessions out of the running nodes. The generations go on after a re-prefill."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from nodes import live, registry
from nodes.amounts import MISSING, parse_seconds
from nodes.errors import MeshnetError
from nodes.live import NodeEviction
from nodes.table import aligned


class Command(BaseCommand):
    help = (
        "Evicts live sessions from the running nodes, over HTTP. An answer that is being written goes on: "
        "its next step costs one pass over its whole text."
    )
    requires_system_checks = ()  # they would load the URLs of the whole head

    def run_from_argv(self, argv: list[str]) -> None:
        super().run_from_argv(_with_sessions_joined(argv))

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        kwargs.setdefault(
            "epilog",
            "Exit codes: 0 all was done, or with --idle-longer-than and --all there was nothing to evict; "
            "1 a node or the mesh could not be reached, or no node holds a session that was asked for (what "
            "could be done was done); 2 wrong usage.",
        )
        return super().create_parser(prog_name, subcommand, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        which = parser.add_mutually_exclusive_group(required=True)
        which.add_argument(
            "--session", action="append", metavar="ID", help="This session, on every node; may be repeated."
        )
        which.add_argument(
            "--idle-longer-than",
            type=_seconds,
            metavar="TIME",
            help="Sessions unused for longer: seconds, or 90s, 10m, 1h.",
        )
        which.add_argument("--all", action="store_true", help="Every session.")
        parser.add_argument(
            "--node", action="append", default=[], metavar="URL", help="Only on this node; may be repeated."
        )
        parser.add_argument("--dry-run", action="store_true", help="Say what would be evicted, and evict nothing.")
        parser.add_argument("--json", action="store_true", help="Print JSON instead of a table.")

    def handle(self, *args: Any, **options: Any) -> None:
        selection: dict[str, Any] = {
            "ids": options["session"],
            "idle_longer_than": options["idle_longer_than"],
            "everything": options["all"],
        }
        try:
            clients = live.choose(registry.node_clients(), options["node"])
            if options["dry_run"]:
                results = live.would_evict(live.fetch(clients), **selection)
            else:
                results = live.evict(clients, **selection)
        except MeshnetError as error:
            raise CommandError(error.detail) from None
        found = {session for result in results for session in result.evicted}
        unknown = [session for session in dict.fromkeys(options["session"] or ()) if session not in found]
        if options["json"]:
            self.stdout.write(json.dumps(_as_json(results, unknown, dry_run=options["dry_run"]), indent=2))
        else:
            self.stdout.write(_report(results, dry_run=options["dry_run"]))
        problems = [result.error for result in results if result.error]
        problems += [f"No node that answered holds session {session}." for session in unknown]
        if problems:
            raise CommandError("\n".join(problems))


def _with_sessions_joined(argv: list[str]) -> list[str]:
    """`--session X` as `--session=X`: one id in 64 begins with a dash, which argparse takes for an option."""
    joined: list[str] = []
    for argument in argv:
        if joined and joined[-1] == "--session" and argument not in ("--json", "--dry-run", "--node"):
            joined[-1] = f"--session={argument}"
        else:
            joined.append(argument)
    return joined


def _seconds(text: str) -> float:
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _as_json(results: Sequence[NodeEviction], unknown: list[str], *, dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "nodes": [
            {"url": result.url, "evicted": result.evicted, "unknown": result.unknown, "error": result.error}
            for result in results
        ],
        "unknown": unknown,
    }


def _report(results: Sequence[NodeEviction], *, dry_run: bool) -> str:
    done = "would be evicted" if dry_run else "evicted"
    rows: list[tuple[str, str, str]] = []
    for result in results:
        rows += [(result.url, session, done) for session in result.evicted]
        rows += [(result.url, session, "not held") for session in result.unknown]
        if result.error:
            rows.append((result.url, MISSING, "failed"))
        elif not (result.evicted or result.unknown):
            rows.append((result.url, MISSING, "nothing to evict"))
    sessions = len({session for result in results for session in result.evicted})
    nodes = sum(bool(result.evicted) for result in results)
    total = f"{_count(sessions, 'session')} on {_count(nodes, 'node')} {done}."
    return f"{aligned(('NODE', 'SESSION', 'RESULT'), rows)}\n\n{total}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
