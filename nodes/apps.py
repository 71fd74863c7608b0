from __future__ import annotations

from functools import cached_property
from threading import BoundedSemaphore
from typing import TYPE_CHECKING

from django.apps import AppConfig

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Sequence

    from nodes.announcer import Announcer
    from nodes.client import NodeClient
    from nodes.joining import ServedModel
    from nodes.runtime import NodeRuntime
    from nodes.shared_snapshots import SharedSnapshots
    from nodes.snapshots import SnapshotCache

MOST_VERIFICATIONS = 8


class NodesConfig(AppConfig):
    name = "nodes"
    verbose_name = "Mesh"

    #: The node that this process serves; set once by the gunicorn hook after the worker has loaded its shard.
    #: None in a head, in commands and while loading.
    runtime: NodeRuntime | None = None

    #: Set by whoever runs a head in this process; answers its clients, or None while no head runs here.
    client_provider: Callable[[], Sequence[NodeClient] | None] | None = None

    #: Set by whoever runs a head in this process: told the URL of a node after each of its announcements that was
    #: accepted (not of a removed one), and when it has said good-bye. Called on a request's thread; must be quick.
    announced: Callable[[str], None] | None = None
    left: Callable[[str], None] | None = None

    #: Tells the heads of the node that this process serves; None while none does, and without MESHNET_HEADS.
    announcer: Announcer | None = None

    #: What the layers of this head's model take; told when the first machine asks to join.
    served_model: ServedModel | None = None

    #: Taken while the URL of an announced node is asked who it is: so many at once, that these waits never take the
    #: threads of the head's answers.
    verifications: BoundedSemaphore

    #: What the pages of this process, and its keeper, saw of the nodes.
    snapshots: SnapshotCache

    @cached_property
    def ssl_context(self) -> ssl.SSLContext:
        """What this process's connections to https:// nodes and heads are made with."""
        from nodes.tls import client_context

        return client_context()

    def ready(self) -> None:
        from nodes.snapshots import SnapshotCache

        self.snapshots = SnapshotCache(shared=_shared_snapshots())
        self.verifications = BoundedSemaphore(MOST_VERIFICATIONS)


def _shared_snapshots() -> SharedSnapshots | None:
    """Where the settings name a cache that heads share."""
    from django.conf import settings
    from django.core.cache import caches

    if "shared" not in settings.CACHES:
        return None
    from nodes.shared_snapshots import SharedSnapshots

    return SharedSnapshots(caches["shared"])
