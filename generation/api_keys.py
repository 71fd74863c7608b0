"""API keys for /v1: making, listing and revoking them, for whoever has a shell on the head."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from generation.models import APIKey

State = Literal["usable", "expired", "revoked"]


@dataclass(frozen=True)
class KeyInfo:
    """What may be told of a key: everything but the key. `prefix` is its first eight characters, by which it goes."""

    prefix: str
    name: str
    created: datetime
    expires: datetime | None
    state: State

    @classmethod
    def of(cls, row: APIKey) -> KeyInfo:
        state: State = "revoked" if row.revoked else "expired" if row.has_expired else "usable"
        return cls(row.prefix, row.name, row.created, row.expiry_date, state)

    def as_json(self) -> dict[str, str | None]:
        return {
            "prefix": self.prefix,
            "name": self.name,
            "state": self.state,
            "created_at": self.created.isoformat(),
            "expires_at": None if self.expires is None else self.expires.isoformat(),
        }


def create(name: str, *, expires: datetime | None = None) -> tuple[KeyInfo, str]:
    """A new key, and the key itself: stored hashed, so that nobody can read it again."""
    row, key = APIKey.objects.create_key(name=name, expiry_date=expires)
    return KeyInfo.of(row), str(key)


def listed() -> list[KeyInfo]:
    """All keys, newest first."""
    return [KeyInfo.of(row) for row in APIKey.objects.order_by("-created", "prefix")]


def revoke(prefix: str) -> tuple[KeyInfo, bool]:
    """The key, refused from now on, and whether that is new. Cannot be undone. Raises APIKey.DoesNotExist."""
    # One UPDATE that looks again: of two who revoke, one has done it.
    changed = APIKey.objects.filter(prefix=prefix, revoked=False).update(revoked=True)
    return KeyInfo.of(APIKey.objects.get(prefix=prefix)), bool(changed)
