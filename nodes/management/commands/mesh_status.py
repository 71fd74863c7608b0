"""`manage.py mesh_status`: whether the running nodes cover every layer. Made for people, scripts and monitoring."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from nodes import live, registry
from nodes.amounts import MISSING
from nodes.coverage import Coverage, cover
from nodes.errors import MeshnetError
from nodes.live import NodeSnapshot
from nodes.table import aligned


class Command(BaseCommand):
    help = (
        "Shows the mesh's nodes, their states and layers, asked over HTTP, and whether ready nodes cover every layer "
        "of the model that most of them serve."
    )
    requires_system_checks = ()  # they would load the URLs of the whole head

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        kwargs.setdefault(
            "epilog",
            "Exit codes: 0 every layer is covered (a node may still be down: it is listed); 1 layers are uncovered, no "
            "node answered, or no mesh is known; 2 wrong usage.",
        )
        return super().create_parser(prog_name, subcommand, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="Print JSON instead of a table.")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            snapshots = live.fetch(registry.node_clients(), sessions=False)
        except MeshnetError as error:
            raise CommandError(error.detail) from None
        coverage = cover(snapshots)
        problem = _problem(coverage)
        if options["json"]:
            self.stdout.write(json.dumps(_as_json(snapshots, coverage, problem), indent=2))
        else:
            self.stdout.write(_report(snapshots, coverage))
        causes = [snapshot.error for snapshot in snapshots if snapshot.error]
        if problem:
            raise CommandError("\n".join([*causes, problem]))
        for cause in causes:
            self.stderr.write(cause)


def _problem(coverage: Coverage | None) -> str:
    """Why no generation can run; empty when one can."""
    if coverage is None:
        return "No node says which layers it holds."
    if not coverage.gaps:
        return ""
    gaps = ", ".join(str(gap) for gap in coverage.gaps)
    return f"No ready node holds layers {gaps} of {coverage.serves.n_layers}."


def _as_json(snapshots: Sequence[NodeSnapshot], coverage: Coverage | None, problem: str) -> dict[str, Any]:
    return {
        "covered": not problem,
        "problem": problem or None,
        "model": coverage.model if coverage else None,
        "fingerprint": coverage.serves.fingerprint if coverage else None,
        "dtype": coverage.serves.dtype if coverage else None,
        "n_layers": coverage.serves.n_layers if coverage else None,
        "layers_online_min": coverage.layers_online_min if coverage else 0,
        "gaps": [[gap.start, gap.end] for gap in coverage.gaps] if coverage else [],
        "stretches": [
            {"start": stretch.start, "end": stretch.end, "nodes": list(stretch.urls)} for stretch in coverage.stretches
        ]
        if coverage
        else [],
        "nodes": [
            {
                "url": snapshot.url,
                "state": snapshot.state,
                "error": snapshot.error,
                "layers": snapshot.layers or None,
                "left_out": coverage.left_out.get(snapshot.url) if coverage else None,
                **{name: (snapshot.status or {}).get(name) for name in ("model", "dtype", "device", "versions")},
            }
            for snapshot in snapshots
        ],
    }


def _report(snapshots: Sequence[NodeSnapshot], coverage: Coverage | None) -> str:
    left_out = coverage.left_out if coverage else {}
    rows = []
    for snapshot in snapshots:
        status = snapshot.status or {}
        versions = status.get("versions")
        rows.append(
            (
                snapshot.url,
                snapshot.state,
                snapshot.layers or MISSING,
                *(status.get(name) or MISSING for name in ("model", "dtype", "device")),
                (versions.get("meshnet") if isinstance(versions, dict) else None) or MISSING,
                left_out.get(snapshot.url) or snapshot.cause,
            )
        )
    table = aligned(("NODE", "STATE", "LAYERS", "MODEL", "DTYPE", "DEVICE", "VERSION", "LEFT OUT"), rows)
    if coverage is None:
        return table
    layers = [
        (str(stretch), ", ".join(stretch.urls) if stretch.urls else "nobody, uncovered")
        for stretch in coverage.stretches
    ]
    held = f"{coverage.layers_online} of {coverage.serves.n_layers} layers are covered"
    least = f"each at least {_times(coverage.layers_online_min)}" if not coverage.gaps else "no generation can run"
    return f"{table}\n\n{aligned(('LAYERS', 'HELD BY'), layers)}\n\n{held}, {least}."


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
