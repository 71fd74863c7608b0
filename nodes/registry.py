"""Which nodes there are, for whoever does not hold a route: commands and the admin.

The running head is asked first, through a provider that its app puts on this app's config (nothing here knows
who that is); then the settings; then the file of a local mesh.
"""

from __future__ import annotations

from typing import cast

from django.apps import apps
from django.conf import settings

from nodes.apps import NodesConfig
from nodes.client import HttpNodeClient, NodeClient
from nodes.errors import MeshnetError
from nodes.mesh_file import FILE_NAME, MeshFile


class NoMesh(MeshnetError):  # as the whole tree is named
    """No mesh is known here."""

    code = "no_mesh"
    http_status = 503


def node_clients() -> list[NodeClient]:
    """A client per node, in the order in which they are configured. Speaks to nobody.

    Raises NoMesh that says what to do.
    """
    provider = cast(NodesConfig, apps.get_app_config("nodes")).client_provider
    provided = provider() if provider is not None else None
    if provided is not None:
        return list(provided)
    urls, secret = _from_settings() or _from_file()
    return [
        HttpNodeClient(url, secret, connect_timeout=settings.MESHNET_CONNECT_TIMEOUT_SECONDS)
        for url in dict.fromkeys(url.rstrip("/") for url in urls)
    ]


def _from_settings() -> tuple[list[str], str] | None:
    if not settings.MESHNET_NODES:
        return None
    if not settings.MESHNET_SECRET:
        raise NoMesh("MESHNET_NODES is set but MESHNET_SECRET is not: set the secret that the nodes were given.")
    return settings.MESHNET_NODES, settings.MESHNET_SECRET


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
            f"No mesh is running here: MESHNET_NODES is not set and there is no {path}. Start a local mesh "
            "with `manage.py mesh`, or set MESHNET_NODES and MESHNET_SECRET to those of a running one."
        )
    return list(mesh.nodes), mesh.mesh_secret
