"""System checks of the settings, each with a stable id and a hint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register

#: Shorter secrets can be guessed.
MIN_SECRET_LENGTH = 16


@register()
def check_secret(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    if settings.MESHNET_SECRET and len(settings.MESHNET_SECRET) < MIN_SECRET_LENGTH:
        return [
            Error(
                f"MESHNET_SECRET is shorter than {MIN_SECRET_LENGTH} characters.",
                hint="Make one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'",
                id="meshnet.E001",
            )
        ]
    return []


@register()
def check_metrics_token(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    if settings.MESHNET_METRICS_TOKEN and len(settings.MESHNET_METRICS_TOKEN) < MIN_SECRET_LENGTH:
        return [
            Error(
                f"MESHNET_METRICS_TOKEN is shorter than {MIN_SECRET_LENGTH} characters.",
                hint="Make one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'",
                id="meshnet.E004",
            )
        ]
    return []


@register()
def check_nodes(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    errors: list[CheckMessage] = []
    for url in settings.MESHNET_NODES:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/"):
            errors.append(
                Error(
                    f"MESHNET_NODES holds {url!r}, which is not the URL of a node.",
                    hint="Write scheme, host and port only, such as http://127.0.0.1:8001.",
                    id="meshnet.E002",
                )
            )
    return errors


@register()
def check_layers(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    from nodes.layers import LayerRange

    if settings.MESHNET_LAYERS:
        try:
            LayerRange.parse(settings.MESHNET_LAYERS)
        except ValueError as error:
            return [Error(f"MESHNET_LAYERS: {error}", hint="Write start:end, such as 0:15.", id="meshnet.E003")]
    return []


@register()
def check_debug(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    if settings.DEBUG and not settings.MESHNET_BIND.startswith(("127.", "localhost", "[::1]")):
        return [
            Warning(
                "MESHNET_DEBUG is on while the bind address is not loopback.",
                hint="Debug pages show settings and source code to whoever causes an error.",
                id="meshnet.W001",
            )
        ]
    return []


def problems_before_serving() -> list[str]:
    """What must hold before a process serves, beyond what commands need. Empty when all is well."""
    problems = []
    if len(settings.MESHNET_SECRET) < MIN_SECRET_LENGTH:
        problems.append(
            f"MESHNET_SECRET must be set to {MIN_SECRET_LENGTH} characters or more: the mesh never runs without a "
            "secret, on loopback neither. `manage.py mesh` makes one for a local mesh."
        )
    if settings.SERVES_HEAD and not settings.MESHNET_DJANGO_SECRET_KEY:
        problems.append("MESHNET_DJANGO_SECRET_KEY must be set for a head: sessions of the admin are signed with it.")
    return problems
