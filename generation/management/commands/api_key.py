"""`manage.py api_key create | list | revoke`: the keys with which clients use /v1."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError
from django.utils import timezone

from generation import api_keys
from generation.models import APIKey
from nodes.amounts import parse_seconds
from nodes.table import aligned

LONGEST_NAME = 50


class Command(BaseCommand):
    help = "Makes, lists and revokes the API keys with which clients use /v1."
    requires_system_checks = ()  # they would load the URLs of the whole head

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        kwargs.setdefault(
            "epilog",
            "Exit codes: 0 done, also when a key was revoked already; 1 no key has that prefix, or the database could "
            "not be used; 2 wrong usage.",
        )
        return super().create_parser(prog_name, subcommand, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True, metavar="create|list|revoke")
        create = actions.add_parser("create", help="Make a key and print it: it is shown this once.")
        create.add_argument(
            "--name", type=_name, required=True, help=f"Whose key it is; {LONGEST_NAME} characters at most."
        )
        create.add_argument(
            "--expires", type=_from_now, metavar="TIME", help="Refused after: 30d, 12h, 10m; never without this."
        )
        listing = actions.add_parser("list", help="List all keys, newest first; the keys themselves cannot be shown.")
        revoke = actions.add_parser("revoke", help="Refuse a key from now on. This cannot be undone.")
        revoke.add_argument("prefix", metavar="PREFIX", help="The key's part before the dot.")
        for action in (create, listing, revoke):
            action.add_argument("--json", action="store_true", help="Print JSON.")

    def handle(self, *args: Any, **options: Any) -> None:
        actions: dict[str, Callable[[dict[str, Any]], tuple[dict[str, Any], str]]] = {
            "create": _create,
            "list": _list,
            "revoke": _revoke,
        }
        try:
            as_json, text = actions[options["action"]](options)
        except DatabaseError as error:
            raise CommandError(f"The database cannot be used: {error}. Is it migrated (manage.py migrate)?") from None
        self.stdout.write(json.dumps(as_json, indent=2) if options["json"] else text)


def _create(options: dict[str, Any]) -> tuple[dict[str, Any], str]:
    info, key = api_keys.create(options["name"], expires=options["expires"])
    until = f"It expires at {_time(info.expires)}." if info.expires else "It does not expire."
    return {**info.as_json(), "key": key}, f"{key}\n\nThis is shown once: keep it now. {until}"


def _list(options: dict[str, Any]) -> tuple[dict[str, Any], str]:
    keys = api_keys.listed()
    rows = [(key.prefix, key.name, key.state, _time(key.created), _time(key.expires)) for key in keys]
    text = aligned(("PREFIX", "NAME", "STATE", "CREATED", "EXPIRES"), rows) if rows else "There are no API keys."
    return {"keys": [key.as_json() for key in keys]}, text


def _revoke(options: dict[str, Any]) -> tuple[dict[str, Any], str]:
    # Who gives the whole key means it; what is said about it holds the prefix alone.
    prefix = options["prefix"].partition(".")[0]
    try:
        info, changed = api_keys.revoke(prefix)
    except APIKey.DoesNotExist:
        raise CommandError(f"No API key has the prefix {prefix[:8]!r}: `api_key list` shows them.") from None
    done = "is refused from now on" if changed else "was revoked already; nothing was changed"
    return {**info.as_json(), "changed": changed}, f"The key {info.prefix} ({info.name}) {done}."


def _name(text: str) -> str:
    name = text.strip()
    if not 1 <= len(name) <= LONGEST_NAME:
        raise argparse.ArgumentTypeError(f"a name has 1 to {LONGEST_NAME} characters, not {len(name)}.")
    return name


def _from_now(text: str) -> datetime:
    try:
        return timezone.now() + timedelta(seconds=parse_seconds(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    except OverflowError:
        raise argparse.ArgumentTypeError(f"{text!r} is later than any date.") from None


def _time(moment: datetime | None) -> str:
    return "never" if moment is None else f"{moment:%Y-%m-%d %H:%M} UTC"
