"""A running head worker: the model's text side, the nodes it knows and its keeper."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from generation.directory import NodeDirectory
from generation.errors import NoRoute
from generation.head import Embeds, LoopSettings
from generation.prompt import Prompter
from generation.route import plan
from nodes.client import HttpNodeClient, LocalNodeClient, NodeClient

if TYPE_CHECKING:
    from generation.keeper import Keeper


class HeadRuntime:
    """What one head worker needs to answer. Shared by its threads; immutable but for the directory's own state."""

    def __init__(
        self,
        model: str,
        prompter: Prompter,
        embedder: Embeds,
        settings: LoopSettings,
        directory: NodeDirectory,
        *,
        boot_id: str | None = None,
    ) -> None:
        self.model = model
        self.prompter = prompter
        self.embedder = embedder
        self.settings = settings
        self.directory = directory
        self.boot_id = boot_id or secrets.token_urlsafe(12)
        self.keeper: Keeper | None = None

    @property
    def clients(self) -> list[NodeClient]:
        return self.directory.clients

    def models(self) -> list[str]:
        """The models that clients may name."""
        return [self.model]

    def ready(self) -> dict[str, Any]:
        """`ready` tells whether a route through all layers can be planned now; `detail` says what is missing."""
        try:
            route = plan(
                self.directory.ready(),
                fingerprint=self.settings.fingerprint,
                dtype=self.settings.dtype,
                n_layers=self.settings.n_layers,
            )
        except NoRoute as error:
            return {"ready": False, "model": self.model, "detail": error.detail}
        return {"ready": True, "model": self.model, "hops": len(route.hops)}

    def stop(self) -> None:
        if self.keeper is not None:
            self.keeper.stop()


def boot_head() -> HeadRuntime:
    """The head that the settings describe, its keeper running. Raises ShardRefused, ModelUnavailable, ValueError."""
    import torch
    from django.apps import apps
    from django.conf import settings

    from generation.keeper import Keeper
    from nodes.framing import DTYPES
    from nodes.model_files import find_model
    from nodes.shard import Embedder

    node_app: Any = apps.get_app_config("nodes")
    if node_app.runtime is None:
        # The head looks embeddings up and nothing more: a pool of threads for each request would only get in the
        # way. Beside layers in the same process the setting would reach the engine's matrix library too.
        torch.set_num_threads(1)
    found = find_model(settings.MESHNET_MODEL, settings.MESHNET_VAR_DIR)
    embedder = Embedder.load(
        found.folder, dtype=DTYPES[settings.MESHNET_DTYPE], context_length=settings.MESHNET_CONTEXT_LENGTH
    )
    clients = _clients(settings.MESHNET_NODES, settings.MESHNET_SECRET, settings.MESHNET_CONNECT_TIMEOUT_SECONDS)
    if node_app.runtime is not None:
        clients.insert(0, LocalNodeClient(node_app.runtime))
    head = HeadRuntime(
        found.name,
        Prompter.load(
            found.folder,
            context_length=embedder.shape.context_length,
            default_max_tokens=settings.MESHNET_MAX_NEW_TOKENS,
        ),
        embedder,
        LoopSettings(
            fingerprint=found.fingerprint,
            dtype=settings.MESHNET_DTYPE,
            n_layers=embedder.shape.n_layers,
            piece_tokens=settings.MESHNET_PREFILL_PIECE_TOKENS,
            step_timeout=settings.MESHNET_STEP_TIMEOUT_SECONDS,
            busy_wait=settings.MESHNET_BUSY_WAIT_SECONDS,
        ),
        NodeDirectory(clients),
    )
    node_app.client_provider = lambda: head.clients
    head.keeper = Keeper(head.boot_id, head.clients)
    head.keeper.start()
    return head


def _clients(urls: Sequence[str], secret: str, connect_timeout: float) -> list[NodeClient]:
    return [HttpNodeClient(url, secret, connect_timeout=connect_timeout) for url in dict.fromkeys(urls)]
