"""The nodes to which this one hands steps over, and what it says when one of them does not take a step."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from nodes.client import NodeClient
from nodes.errors import (
    Busy,
    ComputeFailed,
    Draining,
    HandoverFailed,
    KVCacheMiss,
    MeshnetError,
    NodeTimeout,
    NotReady,
    PayloadTooLarge,
    Released,
    WrongLayers,
    WrongModel,
)
from nodes.handover import NextHop
from nodes.wire import StepHeaders

if TYPE_CHECKING:
    from nodes.payload import Payload

#: Nodes to which connections are kept. A head names the URLs; which of them are spoken to, `connect` decides.
MOST_CLIENTS = 64
#: What a successor says of itself: the head treats it as if it had been told so directly.
_OF_THE_NODE = (
    Busy,
    ComputeFailed,
    Draining,
    KVCacheMiss,
    NodeTimeout,
    NotReady,
    PayloadTooLarge,
    Released,
    WrongLayers,
    WrongModel,
)


class Successors:
    """One per node; any thread may call."""

    def __init__(self, connect: Callable[[str], NodeClient]) -> None:
        """`connect` makes a client, or raises MeshnetError for a URL to which the mesh secret must not go."""
        self._connect = connect
        self._lock = threading.Lock()
        self._clients: OrderedDict[str, NodeClient] = OrderedDict()  # the longest unused first

    def pass_on(self, hop: NextHop, headers: StepHeaders, payload: Payload) -> None:
        """Gives a step to the next node; returns when that and all behind it have done their part.

        Raises what went wrong there, with `node` (its URL) in it; or HandoverFailed with `to`, when two nodes do not
        reach or understand each other, which is no fault of either.
        """
        try:
            self._client(hop.url).forward(headers, payload, timeout=hop.timeout, patience=hop.patience)
        except MeshnetError as error:
            raise self._named(error, hop.url) from None

    def tidy(self) -> None:
        """Closes connections that were not in use for long."""
        with self._lock:
            clients = list(self._clients.values())
        for client in clients:
            client.tidy()

    def _client(self, url: str) -> NodeClient:
        with self._lock:
            client = self._clients.get(url)
            if client is None:
                client = self._clients[url] = self._connect(url)
                while len(self._clients) > MOST_CLIENTS:
                    self._clients.popitem(last=False)
            self._clients.move_to_end(url)
            return client

    def _named(self, error: MeshnetError, url: str) -> MeshnetError:
        if "node" in error.extra or "to" in error.extra:  # it happened farther away, and was named there
            error.detail = error.detail.removeprefix(f"{url}: ")
            return error
        if isinstance(error, _OF_THE_NODE):
            error.extra["node"] = url
            return error
        # Connections and credentials are this node's own, and what the successor does not understand may be this
        # node's doing: a head that relays finds out whether anything is wrong with the successor.
        return HandoverFailed(f"No hand-over to {url}: {error.detail}", to=url)
