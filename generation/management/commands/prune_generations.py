"""`manage.py prune_generations`: deletes rows of generations that ended long ago."""

from __future__ import annotations

import argparse
import json
from datetime import datetime, timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError
from django.utils import timezone

from generation.prune import prune
from nodes.amounts import parse_seconds


class Command(BaseCommand):
    help = "Deletes the rows of generations that ended longer ago than the given time. Running ones always stay."
    requires_system_checks = ()  # they would load the URLs of the whole head

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        kwargs.setdefault(
            "epilog",
            "Exit codes: 0 done, also when there was nothing to delete; 1 the database could not be used (what was "
            "deleted until then is gone); 2 wrong usage.",
        )
        return super().create_parser(prog_name, subcommand, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--older-than",
            type=_ago,
            required=True,
            metavar="TIME",
            help="Only generations that ended longer ago: 30d, 12h, 10m, or seconds.",
        )
        parser.add_argument("--dry-run", action="store_true", help="Say what would be deleted, and delete nothing.")
        parser.add_argument("--json", action="store_true", help="Print JSON instead of a sentence.")

    def handle(self, *args: Any, **options: Any) -> None:
        before: datetime = options["older_than"]
        try:
            done = prune(before, dry_run=options["dry_run"])
        except DatabaseError as error:
            raise CommandError(f"The database cannot be used: {error}. Is it migrated (manage.py migrate)?") from None
        if options["json"]:
            report = {
                "dry_run": options["dry_run"],
                "before": before.isoformat(),
                "deleted": done.rows,
                "running_left": done.running,
            }
            self.stdout.write(json.dumps(report, indent=2))
            return
        verb = "would be deleted" if options["dry_run"] else "deleted"
        left = f" {_count(done.running)} of that age still running: left alone." if done.running else ""
        self.stdout.write(f"{_count(done.rows)} that ended before {before:%Y-%m-%d %H:%M} UTC {verb}.{left}")


def _ago(text: str) -> datetime:
    try:
        return timezone.now() - timedelta(seconds=parse_seconds(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    except OverflowError:
        raise argparse.ArgumentTypeError(f"{text!r} is longer ago than any date.") from None


def _count(number: int) -> str:
    return f"{number} generation{'' if number == 1 else 's'}"
