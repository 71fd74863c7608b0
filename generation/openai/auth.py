"""Who may ask: `Authorization: Bearer <API key>`; with MESHNET_API_AUTH=off everybody whom `local_only` lets in."""

from __future__ import annotations

import re

from django.conf import settings
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from generation import api_keys
from generation.models import APIKey

#: What a key can look like: keeps bytes that a database refuses (NUL) out of the query.
_KEY = re.compile(r"[A-Za-z0-9._-]{1,200}")


class BearerKey(BaseAuthentication):
    """Sets `request.auth` to the APIKey row. Missing, wrong, revoked and expired keys are all 401.

    Reads one row, and once a minute writes that the key is used. Which of the four it was is not told, nor is the key
    repeated. None with MESHNET_API_AUTH=off, whatever was sent.
    """

    def authenticate(self, request: Request) -> tuple[None, APIKey | None]:
        if settings.MESHNET_API_AUTH == "off":
            return None, None
        scheme, _, key = request.META.get("HTTP_AUTHORIZATION", "").strip().partition(" ")
        key = key.strip()
        if scheme.lower() != "bearer" or not key:
            raise AuthenticationFailed("No API key was sent. Use the header 'Authorization: Bearer YOUR_KEY'.")
        row = APIKey.objects.usable(key) if _KEY.fullmatch(key) else None
        if row is None:
            raise AuthenticationFailed("The API key provided is not valid here.")
        api_keys.note_use(row)
        return None, row

    def authenticate_header(self, request: Request) -> str:
        """Makes Django REST framework answer 401; without it a wrong key would be 403."""
        return "Bearer"
