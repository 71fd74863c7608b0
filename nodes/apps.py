from __future__ import annotations

from typing import TYPE_CHECKING

from django.apps import AppConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nodes.client import NodeClient
    from nodes.runtime import NodeRuntime
    from nodes.snapshots import SnapshotCache


class NodesConfig(AppConfig):
    name = "nodes"
    verbose_name = "Mesh"

    #: The node that this process serves; set once by the gunicorn hook after the worker has loaded its shard.
    #: None in a head, in commands and while loading.
    runtime: NodeRuntime | None = None

    #: Set by whoever runs a head in this process; answers its clients, or None while no head runs here.
    client_provider: Callable[[], Sequence[NodeClient] | None] | None = None

    #: What the pages of this process, and its keeper, saw of the nodes.
    snapshots: SnapshotCache

    def ready(self) -> None:
        from nodes.snapshots import SnapshotCache

        self.snapshots = SnapshotCache()
