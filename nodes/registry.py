"""Which nodes there are, for whoever does not hold a route: commands and the admin.

The running head is asked first, through a provider that its app puts on this app's config (nothing here knows
who that is); then the settings; then the file of a local mesh. To both of these come the nodes that announced
themselves to a head, where its database is.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

from django.apps import apps
from django.conf import settings
from django.utils import timezone

from nodes.apps import NodesConfig
from nodes.client import HttpNodeClient, NodeClient
from nodes.errors import MeshnetError
from nodes.mesh_file import FILE_NAME, MeshFile
from nodes.networks import NodeNetworks


class NoMesh(MeshnetError):  # as the whole tree is named
    """No mesh is known here."""

    code = "no_mesh"
    http_status = 503


def connect(url: str, secret: str | None = None) -> HttpNodeClient:
    """A client for a node, with the secret (default: the settings'), the allowed networks and TLS of this process.

    Speaks to nobody. Raises NodeUnreachable or BadRequest for a URL that no node may have.
    """
    return HttpNodeClient(
        url,
        settings.MESHNET_SECRET if secret is None else secret,
        connect_timeout=settings.MESHNET_CONNECT_TIMEOUT_SECONDS,
        networks=NodeNetworks.from_settings(),
        ssl_context=_config().ssl_context if url.startswith("https:") else None,
    )


def node_clients() -> list[NodeClient]:
    """A client per node, in the order in which they are configured. Speaks to nobody.

    Raises NoMesh that says what to do.
    """
    provider = _config().client_provider
    provided = provider() if provider is not None else None
    if provided is not None:
        return list(provided)
    urls, secret = _from_settings() or _from_file()
    return [connect(url, secret) for url in dict.fromkeys(url.rstrip("/") for url in [*urls, *_announced()])]


def _config() -> NodesConfig:
    return cast(NodesConfig, apps.get_app_config("nodes"))


def _from_settings() -> tuple[list[str], str] | None:
    if settings.MESHNET_NODES and not settings.MESHNET_SECRET:
        raise NoMesh("MESHNET_NODES is set but MESHNET_SECRET is not: set the secret that the nodes were given.")
    if not settings.MESHNET_NODES and not (settings.MESHNET_SECRET and _announced()):
        return None
    return settings.MESHNET_NODES, settings.MESHNET_SECRET


def _announced() -> list[str]:
    """Nodes that announced themselves to a head whose database this is; none where there is no such database."""
    from django.db import DatabaseError, connection

    from nodes import announcements

    if not settings.SERVES_HEAD:
        return []
    name = str(connection.settings_dict["NAME"])
    if connection.vendor == "sqlite" and "memory" not in name and not Path(name).exists():
        return []  # looking would make one
    try:
        return announcements.roster(timezone.now())
    except DatabaseError:  # no head has migrated it, or it cannot be reached: what else is known must do
        return []


def _from_file() -> tuple[list[str], str]:
    path = settings.MESHNET_VAR_DIR / FILE_NAME
    try:
        mesh = MeshFile.read(settings.MESHNET_VAR_DIR)
    except ValueError as error:
        raise NoMesh(f"{error} Start the mesh anew, or set MESHNET_NODES and MESHNET_SECRET.") from None
    except OSError as error:
        raise NoMesh(f"{path} cannot be read: {error.strerror}. It belongs to whoever started the mesh.") from None
    if mesh is None:
        raise NoMesh(
            f"No mesh is running here: MESHNET_NODES is not set, no node has announced itself and there is no {path}. "
            "Start a local mesh with `manage.py mesh`, or set MESHNET_NODES and MESHNET_SECRET to those of a running "
            "one."
        )
    return list(mesh.nodes), mesh.mesh_secret
