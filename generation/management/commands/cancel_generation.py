"""`manage.py cancel_generation`: tells the head worker that runs a generation to end it."""

from __future__ import annotations

import json
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError

from generation.cancel import request_cancel
from generation.models import Generation


class Command(BaseCommand):
    help = (
        "Cancels a running generation: its row is marked, its head worker sees that within a second, and the "
        "generation ends before its next step. Its client gets the error `cancelled`."
    )
    requires_system_checks = ()  # they would load the URLs of the whole head

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        kwargs.setdefault(
            "epilog",
            "Exit codes: 0 it was told to end, now or before; 1 there is no such generation, it is not running, or the "
            "database cannot be read; 2 wrong usage.",
        )
        return super().create_parser(prog_name, subcommand, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("generation", metavar="SESSION_OR_ID", help="A session id, or the number of the row.")
        parser.add_argument("--json", action="store_true", help="Print JSON instead of a sentence.")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            row, asked = _cancel(options["generation"])
        except DatabaseError as error:
            raise CommandError(f"The database cannot be used: {error}") from None
        if options["json"]:
            self.stdout.write(json.dumps(_as_json(options["generation"], row, asked=asked), indent=2))
        if row is None:
            raise CommandError(f"There is no generation {options['generation']}.")
        if not row.cancel_requested or row.status != Generation.Status.RUNNING:
            raise CommandError(f"Generation {row.session_id} is not running; it is {row.status}.")
        if not options["json"]:
            before = "" if asked else ", as it was before"
            self.stdout.write(f"Generation {row.session_id} was told to end{before}.")


def _cancel(name: str) -> tuple[Generation | None, bool]:
    """The row as it is afterwards, and whether it was this call that asked."""
    rows = Generation.objects.filter(session_id=name)
    if not rows.exists() and name.isascii() and name.isdecimal() and len(name) <= 18:
        rows = Generation.objects.filter(pk=int(name))
    asked = bool(request_cancel(rows))
    return rows.first(), asked


def _as_json(name: str, row: Generation | None, *, asked: bool) -> dict[str, Any]:
    return {
        "generation": name,
        "id": None if row is None else row.pk,
        "session_id": None if row is None else row.session_id,
        "status": None if row is None else row.status,
        "cancel_requested": row is not None and row.cancel_requested,
        "asked": asked,
    }
