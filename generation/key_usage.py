"""What API keys use: one row per key and day, added to when a generation ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from django.db.models import F, QuerySet, Sum

from generation.models import APIKey, KeyUsage


@dataclass(frozen=True)
class DayOfUse:
    """What the key with this prefix used on one day (UTC)."""

    day: date
    prefix: str
    name: str
    requests: int
    prompt_tokens: int
    completion_tokens: int

    def as_json(self) -> dict[str, str | int]:
        return {
            "day": self.day.isoformat(),
            "prefix": self.prefix,
            "name": self.name,
            "requests": self.requests,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
        }


@dataclass(frozen=True)
class UsageTotals:
    """What rows of usage add up to."""

    requests: int
    prompt_tokens: int
    completion_tokens: int

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    @property
    def in_words(self) -> dict[str, str]:
        """As the page writes it."""
        return {
            "requests": f"{self.requests:,}",
            "prompt_tokens": f"{self.prompt_tokens:,}",
            "completion_tokens": f"{self.completion_tokens:,}",
            "tokens": f"{self.tokens:,}",
        }


def day_of(moment: datetime) -> date:
    """The day, in UTC, that a moment counts for."""
    return moment.astimezone(UTC).date()


def add_usage(key_id: str, day: date, *, requests: int, prompt_tokens: int, completion_tokens: int) -> None:
    """Adds to the key's row of that day, from any number of workers at once. Raises Django's database errors.

    A key that was deleted meanwhile has no usage any more: nothing is written.
    """
    rows = KeyUsage.objects.filter(api_key_id=key_id, day=day)
    added = {
        "requests": F("requests") + requests,
        "prompt_tokens": F("prompt_tokens") + prompt_tokens,
        "completion_tokens": F("completion_tokens") + completion_tokens,
    }
    if rows.update(**added) or not APIKey.objects.filter(pk=key_id).exists():
        return
    # The first of the day. Whoever else makes the row at this moment finds that there is one, and both add to it.
    KeyUsage.objects.bulk_create([KeyUsage(api_key_id=key_id, day=day)], ignore_conflicts=True)
    rows.update(**added)


def tokens_used(key_id: str, day: date) -> int:
    """Prompt and answer tokens of the generations that have ended on that day."""
    found = KeyUsage.objects.filter(api_key_id=key_id, day=day).values_list("prompt_tokens", "completion_tokens")
    return sum(prompt + completion for prompt, completion in found)


def days_of_use(*, prefix: str | None = None, since: date | None = None) -> Sequence[DayOfUse]:
    """Newest day first, then by the keys' names. Raises APIKey.DoesNotExist for a prefix that no key has."""
    rows = KeyUsage.objects.select_related("api_key").order_by("-day", "api_key__name", "api_key__prefix")
    if prefix is not None:
        rows = rows.filter(api_key=APIKey.objects.get(prefix=prefix))
    if since is not None:
        rows = rows.filter(day__gte=since)
    return [
        DayOfUse(
            row.day, row.api_key.prefix, row.api_key.name, row.requests, row.prompt_tokens, row.completion_tokens
        )
        for row in rows
    ]  # fmt: skip


def first_of(days: int, now: datetime) -> date:
    """The first of that many days, today included."""
    return day_of(now) - timedelta(days=days - 1)


def totals_of_use(rows: QuerySet[KeyUsage]) -> UsageTotals:
    """One query, however many rows."""
    sums = rows.order_by().aggregate(
        requests=Sum("requests"), prompt=Sum("prompt_tokens"), completion=Sum("completion_tokens")
    )
    return UsageTotals(sums["requests"] or 0, sums["prompt"] or 0, sums["completion"] or 0)
