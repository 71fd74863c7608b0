"""API keys for /v1: making, listing, limiting and revoking them, for whoever has a shell on the head."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from django.db import Error as DatabaseError
from django.db.models import Q
from django.utils import timezone

from generation.models import APIKey

logger = logging.getLogger(__name__)

State = Literal["usable", "expired", "revoked"]

#: How exactly it is known when a key was used last: one write in this time, however many requests.
USE_NOTED_EVERY = timedelta(minutes=1)


@dataclass(frozen=True)
class Limits:
    """What a key may do; None limits nothing, and without models it may use all."""

    models: tuple[str, ...] = ()
    requests_per_minute: int | None = None
    tokens_per_day: int | None = None
    concurrent_generations: int | None = None

    @classmethod
    def of(cls, row: APIKey) -> Limits:
        return cls(
            tuple(row.model_ids), row.requests_per_minute, row.tokens_per_day, row.concurrent_generations
        )  # fmt: skip

    def as_fields(self) -> dict[str, Any]:
        """As the key's row has them."""
        return {
            "allowed_models": "\n".join(self.models),
            "requests_per_minute": self.requests_per_minute,
            "tokens_per_day": self.tokens_per_day,
            "concurrent_generations": self.concurrent_generations,
        }

    def as_json(self) -> dict[str, Any]:
        return {
            "models": list(self.models),
            "requests_per_minute": self.requests_per_minute,
            "tokens_per_day": self.tokens_per_day,
            "concurrent_generations": self.concurrent_generations,
        }


@dataclass(frozen=True)
class KeyInfo:
    """What may be told of a key: everything but the key. `prefix` is its first eight characters, by which it goes."""

    prefix: str
    name: str
    created: datetime
    expires: datetime | None
    last_used: datetime | None
    state: State
    limits: Limits

    @classmethod
    def of(cls, row: APIKey) -> KeyInfo:
        state: State = "revoked" if row.revoked else "expired" if row.has_expired else "usable"
        return cls(row.prefix, row.name, row.created, row.expiry_date, row.last_used_at, state, Limits.of(row))

    def as_json(self) -> dict[str, Any]:
        return {
            "prefix": self.prefix,
            "name": self.name,
            "state": self.state,
            "created_at": self.created.isoformat(),
            "expires_at": None if self.expires is None else self.expires.isoformat(),
            "last_used_at": None if self.last_used is None else self.last_used.isoformat(),
            "limits": self.limits.as_json(),
        }


def create(name: str, *, expires: datetime | None = None, limits: Limits | None = None) -> tuple[KeyInfo, str]:
    """A new key, and the key itself: stored hashed, so that nobody can read it again."""
    row, key = APIKey.objects.create_key(name=name, expiry_date=expires, **(limits or Limits()).as_fields())
    return KeyInfo.of(row), str(key)


def limit(prefix: str, **changes: Any) -> KeyInfo:
    """Changes some limits, named as `Limits` names them; the others stay. Raises APIKey.DoesNotExist.

    They hold from the next request on, in every head worker.
    """
    row = APIKey.objects.get(prefix=prefix)
    fields = Limits(**{**vars(Limits.of(row)), **changes}).as_fields()
    APIKey.objects.filter(pk=row.pk).update(**fields)
    return KeyInfo.of(APIKey.objects.get(pk=row.pk))


def note_use(row: APIKey) -> None:
    """Writes when the key was used, once a minute at most. Never raises: nobody is refused over it."""
    now = timezone.now()
    if row.last_used_at is not None and row.last_used_at > now - USE_NOTED_EVERY:
        return
    try:
        # Of all who saw at once that it is due, one changes the row.
        APIKey.objects.filter(pk=row.pk).filter(
            Q(last_used_at__isnull=True) | Q(last_used_at__lte=now - USE_NOTED_EVERY)
        ).update(last_used_at=now)
    except DatabaseError:
        logger.exception("When an API key was last used could not be written.")


def listed() -> Sequence[KeyInfo]:
    """All keys, newest first."""
    return [KeyInfo.of(row) for row in APIKey.objects.order_by("-created", "prefix")]


def revoke(prefix: str) -> tuple[KeyInfo, bool]:
    """The key, refused from now on, and whether that is new. Cannot be undone. Raises APIKey.DoesNotExist."""
    # One UPDATE that looks again: of two who revoke, one has done it.
    changed = APIKey.objects.filter(prefix=prefix, revoked=False).update(revoked=True)
    return KeyInfo.of(APIKey.objects.get(prefix=prefix)), bool(changed)
