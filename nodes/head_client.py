"""A head as nodes and joining machines speak to it: a node's client with a head's two endpoints."""

from __future__ import annotations

import json
from typing import Any, cast

from django.apps import apps
from django.conf import settings

from nodes import wire
from nodes.apps import NodesConfig
from nodes.client import HttpNodeClient
from nodes.networks import NodeNetworks


class HeadClient(HttpNodeClient):
    """Guarded as the client of a node is: no redirect, no proxy, the secret goes to this head alone."""

    def announce(self, body: dict[str, Any], *, timeout: float) -> dict[str, Any]:
        """Raises NotVerified, OutsideNetworks and others that the head answers, and NodeUnreachable."""
        return self._post("/mesh/announce", body, timeout)

    def join(self, body: dict[str, Any], *, timeout: float) -> dict[str, Any]:
        """Raises NoRoom, WrongModel, WrongLayers and others that the head answers, and NodeUnreachable."""
        return self._post("/mesh/join", body, timeout)

    def _post(self, path: str, body: dict[str, Any], timeout: float) -> dict[str, Any]:
        try:
            return self._json(self._request("POST", path, json.dumps(body).encode(), wire.JSON_TYPE, timeout).data)
        finally:
            # A server that is told to end waits 2 s for clients that keep their connections. A new one for each beat
            # costs nothing, but for TLS.
            if self.url.startswith("http:"):
                self.close()


def connect_head(url: str, secret: str | None = None) -> HeadClient:
    """A client of the head at this URL, by the settings of this process; its secret, unless another one is given.

    Raises BadRequest for a URL that no head may have, and ImproperlyConfigured for certificates that cannot be used.
    """
    nodes = cast(NodesConfig, apps.get_app_config("nodes"))
    return HeadClient(
        url,
        settings.MESHNET_SECRET if secret is None else secret,
        connect_timeout=settings.MESHNET_CONNECT_TIMEOUT_SECONDS,
        networks=NodeNetworks.for_heads(),
        ssl_context=nodes.ssl_context if url.startswith("https:") else None,
    )
