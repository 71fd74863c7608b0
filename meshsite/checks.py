"""System checks of the settings, each with a stable id and a hint."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Sequence
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register

from meshsite import open_api

#: Shorter secrets can be guessed.
MIN_SECRET_LENGTH = 16
#: Scheme, perhaps user and password, host and port, perhaps the number of a database, perhaps options of redis-py.
_REDIS = re.compile(r"rediss?://([^@/?#\s]*@)?([A-Za-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?(/[0-9]*)?(\?[^#\s]*)?")
#: What browsers send: in small letters, without a path.
_ORIGIN = re.compile(r"https?://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")


@register()
def check_secret(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    return [
        Error(
            f"{name} is shorter than {MIN_SECRET_LENGTH} characters.",
            hint="Make one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'",
            id="meshnet.E001",
        )
        for name in ("MESHNET_SECRET", "MESHNET_SECRET_ALSO")
        if 0 < len(getattr(settings, name)) < MIN_SECRET_LENGTH
    ]


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
    from nodes.errors import BadRequest, OutsideNetworks
    from nodes.networks import NodeNetworks

    try:
        networks = NodeNetworks.from_settings()
    except ValueError as error:
        return [
            Error(
                f"MESHNET_NODE_NETWORKS: {error}.",
                hint="Write networks such as 10.0.0.0/8, separated by commas, without bits of a host.",
                id="meshnet.E006",
            )
        ]
    errors: list[CheckMessage] = []
    for url in settings.MESHNET_NODES:
        try:
            networks.check(url)
        except OutsideNetworks as error:
            errors.append(
                Error(
                    f"MESHNET_NODES: {error.detail}",
                    hint="The mesh secret goes to nodes in these networks only: see docs/settings.md.",
                    id="meshnet.E005",
                )
            )
        except BadRequest:
            errors.append(
                Error(
                    f"MESHNET_NODES holds {url!r}, which is not the URL of a node.",
                    hint="Write scheme, host and port only, such as http://127.0.0.1:8001.",
                    id="meshnet.E002",
                )
            )
    return errors


@register()
def check_heads(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    from nodes.errors import BadRequest
    from nodes.networks import NodeNetworks, normal_url

    errors: list[CheckMessage] = []
    named: list[tuple[str, str, Callable[[str], object]]] = [
        ("MESHNET_HEADS", url, NodeNetworks.for_heads().check) for url in settings.MESHNET_HEADS
    ]
    if settings.MESHNET_URL:
        named.append(("MESHNET_URL", settings.MESHNET_URL, normal_url))
    for name, url, check in named:
        try:
            check(url)
        except BadRequest as error:
            errors.append(
                Error(
                    f"{name}: {error.detail}",
                    hint="Write scheme, host and port only, such as https://mesh.example.org.",
                    id="meshnet.E007",
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
def check_tls(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    from nodes import tls

    hint = "Each is the path of a file in PEM that this process may read; see docs/security.md."
    errors: list[CheckMessage] = [
        Error(problem, hint=hint, id=code) for code, problems in tls.problems(settings).items() for problem in problems
    ]
    if settings.MESHNET_TLS_CLIENT_CA and not settings.MESHNET_TLS_CERT:
        errors.append(
            Error(
                "MESHNET_TLS_CLIENT_CA is set without MESHNET_TLS_CERT: over plain HTTP nobody shows a certificate.",
                hint=hint,
                id="meshnet.E012",
            )
        )
    return errors


@register()
def check_cache(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    # The value is not repeated: it may hold a password.
    if not settings.MESHNET_CACHE_URL or _REDIS.fullmatch(settings.MESHNET_CACHE_URL):
        return []
    return [
        Error(
            "MESHNET_CACHE_URL is not the URL of a Redis.",
            hint="Write redis://host:6379/0, with :password@ before the host if it has one, percent-encoded; rediss:// "
            "for TLS.",
            id="meshnet.E022",
        )
    ]


@register()
def check_https(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    if not settings.SERVES_HEAD:
        return []
    if settings.MESHNET_TLS_CERT and not settings.MESHNET_HTTPS:
        return [
            Warning(
                "This head serves HTTPS while MESHNET_HTTPS is off.",
                hint="Set MESHNET_HTTPS=on, so that browsers never send the admin's cookies in plain HTTP.",
                id="meshnet.W002",
            )
        ]
    if settings.MESHNET_HTTPS and not settings.MESHNET_TLS_CERT and not _binds_loopback():
        return [
            Warning(
                f"MESHNET_HTTPS is on while {settings.MESHNET_BIND} takes plain HTTP from other machines.",
                hint="Bind to loopback behind a TLS proxy on this machine, or set MESHNET_TLS_CERT. With a proxy on "
                "another machine let a firewall keep everybody else out, and silence this.",
                id="meshnet.W003",
            )
        ]
    return []


@register()
def check_proxies(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    errors: list[CheckMessage] = []
    for network in settings.FORWARDED_ALLOW_IPS:
        try:
            ipaddress.ip_network(network)
        except ValueError:
            errors.append(
                Error(
                    f"FORWARDED_ALLOW_IPS holds {network!r}, which is neither an address nor a network.",
                    hint="Name the proxies. Believing everybody, *, would let any client say that it came over TLS.",
                    id="meshnet.E014",
                )
            )
    return errors


@register()
def check_debug(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    if settings.DEBUG and not _binds_loopback():
        return [
            Warning(
                "MESHNET_DEBUG is on while the bind address is not loopback.",
                hint="Debug pages show settings and source code to whoever causes an error.",
                id="meshnet.W001",
            )
        ]
    return []


@register()
def check_api_auth(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    return [
        Error(problem, hint="Without keys /v1 is for programs on this machine alone.", id="meshnet.E020")
        for problem in open_api.problems()
    ]


@register()
def check_cors_origins(app_configs: Sequence[Any] | None, **kwargs: Any) -> list[CheckMessage]:
    return [
        Error(
            f"MESHNET_CORS_ORIGINS holds {origin!r}, which is not an origin.",
            hint="Write scheme, host and port as browsers send them, such as https://chat.example.org. There is no "
            "wildcard: any page could then use what a browser on this machine or in your network reaches.",
            id="meshnet.E021",
        )
        for origin in settings.MESHNET_CORS_ORIGINS
        if not _ORIGIN.fullmatch(origin)
    ]


def _binds_loopback() -> bool:
    return settings.MESHNET_BIND.startswith(("127.", "localhost", "[::1]", "unix:"))


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
    return problems + open_api.problems()
