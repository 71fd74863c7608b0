"""MESHNET_API_AUTH=off at the start: refused unless nothing but loopback is listened to and answered for.

What comes in afterwards is looked at too, request by request (`generation.openai.local_only`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.conf import settings

from meshsite.loopback import is_loopback_address, is_loopback_host

OFF = "off"


def is_open() -> bool:
    """Whether this process serves /v1 without asking for keys."""
    return bool(settings.SERVES_HEAD and settings.MESHNET_API_AUTH == OFF)


def problems() -> list[str]:
    """What of the settings does not go with it; empty when all is well."""
    if not is_open():
        return []
    found = [
        f"MESHNET_API_AUTH is off while MESHNET_ALLOWED_HOSTS holds {host!r}, which is no loopback name."
        for host in settings.ALLOWED_HOSTS
        if not is_loopback_host(host)
    ]
    host = settings.MESHNET_BIND.rpartition(":")[0]
    if not is_loopback_host(host):
        found.insert(0, _of_bind(settings.MESHNET_BIND))
    return found


def exposed(addresses: Iterable[Any]) -> str | None:
    """What is wrong with gunicorn's own addresses, wherever they were set: (host, port, …), or whatever names a Unix
    socket or an inherited one. Those of sockets that are bound already are the truth.
    """
    if not is_open():
        return None
    for address in addresses:
        host = address[0] if isinstance(address, tuple) else ""
        if host != "localhost" and not is_loopback_address(host):
            return _of_bind(f"{host}:{address[1]}" if isinstance(address, tuple) else str(address))
    return None


def _of_bind(bind: str) -> str:
    return (
        f"MESHNET_API_AUTH is off while the bind is {bind}: others would compute here without a key. "
        "Bind to 127.0.0.1, or ask for keys."
    )
