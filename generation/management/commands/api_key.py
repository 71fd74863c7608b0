"""`manage.py api_key create | list | limit | usage | revoke`: the keys with which clients use /v1."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError
from django.utils import timezone

from generation import api_keys, key_usage
from generation.api_keys import KeyInfo, Limits
from generation.models import APIKey
from nodes.amounts import MISSING, parse_seconds
from nodes.table import aligned

LONGEST_NAME = 50
#: More does not fit into the columns of every database.
HIGHEST_LIMIT = 2**31 - 1
DAYS_SHOWN = 30
NONE = "none"


COLUMNS = (
    "PREFIX", "NAME", "STATE", "CREATED", "EXPIRES", "LAST USED", "REQUESTS/MIN", "TOKENS/DAY", "AT ONCE", "MODELS",
)  # fmt: skip


class Command(BaseCommand):
    help = "Makes, lists, limits and revokes the API keys with which clients use /v1, and shows what they used."
    requires_system_checks = ()  # they would load the URLs of the whole head

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        kwargs.setdefault(
            "epilog",
            "Exit codes: 0 done, also when a key was revoked already; 1 no key has that prefix, or the database could "
            "not be used; 2 wrong usage.",
        )
        return super().create_parser(prog_name, subcommand, **kwargs)

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True, metavar="create|list|limit|usage|revoke")
        create = actions.add_parser("create", help="Make a key and print it: it is shown this once.")
        create.add_argument(
            "--name", type=_name, required=True, help=f"Whose key it is; {LONGEST_NAME} characters at most."
        )
        create.add_argument(
            "--expires", type=_from_now, metavar="TIME", help="Refused after: 30d, 12h, 10m; never without this."
        )
        _add_limits(create)
        listing = actions.add_parser("list", help="List all keys, newest first; the keys themselves cannot be shown.")
        revoke = actions.add_parser("revoke", help="Refuse a key from now on. This cannot be undone.")
        revoke.add_argument("prefix", metavar="PREFIX", help="The key's part before the dot.")
        limit = actions.add_parser("limit", help="Change a key's limits; those that are not named stay.")
        limit.add_argument("prefix", metavar="PREFIX", help="The key's part before the dot.")
        _add_limits(limit)
        usage = actions.add_parser("usage", help="Show what keys used, day by day (UTC), newest first.")
        usage.add_argument("--key", metavar="PREFIX", help="Only this key.")
        usage.add_argument(
            "--days", type=_days, default=DAYS_SHOWN, metavar="N", help=f"Today and before, {DAYS_SHOWN} days in all."
        )
        for action in (create, listing, revoke, limit, usage):
            action.add_argument("--json", action="store_true", help="Print JSON.")

    def handle(self, *args: Any, **options: Any) -> None:
        actions: dict[str, Callable[[dict[str, Any]], tuple[dict[str, Any], str]]] = {
            "create": _create,
            "list": _list,
            "revoke": _revoke,
            "limit": _limit,
            "usage": _usage,
        }
        try:
            as_json, text = actions[options["action"]](options)
        except APIKey.DoesNotExist:
            given = _prefix(options.get("prefix") or options.get("key") or "")
            raise CommandError(f"No API key has the prefix {given!r}: `api_key list` shows them.") from None
        except DatabaseError as error:
            raise CommandError(f"The database cannot be used: {error}. Is it migrated (manage.py migrate)?") from None
        self.stdout.write(json.dumps(as_json, indent=2) if options["json"] else text)


def _create(options: dict[str, Any]) -> tuple[dict[str, Any], str]:
    info, key = api_keys.create(options["name"], expires=options["expires"], limits=Limits(**_limits(options)))
    until = f"It expires at {_time(info.expires)}." if info.expires else "It does not expire."
    return {**info.as_json(), "key": key}, f"{key}\n\nThis is shown once: keep it now. {until} {_told(info)}"


def _list(options: dict[str, Any]) -> tuple[dict[str, Any], str]:
    keys = api_keys.listed()
    rows = [
        (
            key.prefix, key.name, key.state, _time(key.created), _time(key.expires), _time(key.last_used),
            *(_number(limit) for limit in _numbers(key)), ",".join(key.limits.models) or "all",
        )
        for key in keys
    ]  # fmt: skip
    text = aligned(COLUMNS, rows) if rows else "There are no API keys."
    return {"keys": [key.as_json() for key in keys]}, text


def _revoke(options: dict[str, Any]) -> tuple[dict[str, Any], str]:
    info, changed = api_keys.revoke(_prefix(options["prefix"]))
    done = "is refused from now on" if changed else "was revoked already; nothing was changed"
    return {**info.as_json(), "changed": changed}, f"The key {info.prefix} ({info.name}) {done}."


def _limit(options: dict[str, Any]) -> tuple[dict[str, Any], str]:
    changes = _limits(options)
    if not changes:
        raise CommandError("Name a limit to change: see api_key limit --help.", returncode=2)
    info = api_keys.limit(_prefix(options["prefix"]), **changes)
    return info.as_json(), f"The key {info.prefix} ({info.name}): {_told(info)}"


def _usage(options: dict[str, Any]) -> tuple[dict[str, Any], str]:
    days = key_usage.days_of_use(
        prefix=None if options["key"] is None else _prefix(options["key"]),
        since=key_usage.first_of(options["days"], timezone.now()),
    )
    rows = [
        (day.day.isoformat(), day.prefix, day.name, *map(str, (day.requests, day.prompt_tokens, day.completion_tokens)))
        for day in days
    ]
    header = ("DAY", "PREFIX", "NAME", "REQUESTS", "PROMPT TOKENS", "ANSWER TOKENS")
    text = aligned(header, rows) if rows else f"No key was used in {options['days']} days."
    return {"usage": [day.as_json() for day in days]}, text


def _add_limits(parser: argparse.ArgumentParser) -> None:
    """The options that `_limits` reads. What is not given is not there."""
    for name, kind, metavar, text in (
        ("--models", _models, "A,B", "Models that it may use"),
        ("--requests-per-minute", _count, "N", "Requests in any 60 seconds"),
        ("--tokens-per-day", _count, "N", "Tokens of prompts and answers on one day (UTC)"),
        ("--concurrent-generations", _count, "N", "Generations at the same time"),
    ):
        parser.add_argument(
            name, type=kind, metavar=metavar, default=argparse.SUPPRESS, help=f"{text}; {NONE} for no limit."
        )


def _limits(options: dict[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in vars(Limits()) if name in options}


def _numbers(info: KeyInfo) -> tuple[int | None, int | None, int | None]:
    limits = info.limits
    return limits.requests_per_minute, limits.tokens_per_day, limits.concurrent_generations


def _told(info: KeyInfo) -> str:
    """The key's limits as a sentence."""
    words = ("{} requests per minute", "{} tokens per day", "{} generations at once")
    told = [word.format(number) for word, number in zip(words, _numbers(info), strict=True) if number is not None]
    told += [f"only {', '.join(info.limits.models)}"] if info.limits.models else []
    return f"Limits: {', '.join(told)}." if told else "It has no limits."


def _prefix(text: str) -> str:
    """Who gives the whole key means it; what is said about it holds the prefix alone."""
    return text.partition(".")[0][:8]


def _models(text: str) -> tuple[str, ...]:
    models = tuple(dict.fromkeys(model.strip() for model in text.split(",") if model.strip()))
    if not models:
        raise argparse.ArgumentTypeError(f"name models, separated by commas, or {NONE}.")
    return () if models == (NONE,) else models


def _count(text: str) -> int | None:
    if text == NONE:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 20 and 1 <= int(text) <= HIGHEST_LIMIT):
        raise argparse.ArgumentTypeError(f"a limit is a number from 1 to {HIGHEST_LIMIT}, or {NONE}, not {text!r:.40}.")
    return int(text)


def _days(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20 and 1 <= int(text) <= 36_500):
        raise argparse.ArgumentTypeError(f"days are a number from 1 to 36500, not {text!r:.40}.")
    return int(text)


def _number(value: int | None) -> str:
    return MISSING if value is None else str(value)


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
