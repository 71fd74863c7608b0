"""The nodes that a head worker knows now, and its client for each: those of its settings, and those that announced
themselves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import overload

from nodes.client import NodeClient
from nodes.errors import MeshnetError, NotFound


class NodeFleet(Sequence[NodeClient]):
    """Fixed nodes first, then the announced ones by URL. Any thread may read and change it.

    Iterating goes over the nodes of one moment. Whoever needs two looks at the same nodes takes a list first. A node
    that has left is no member any more, but `client` still finds it: running answers end there, and release there.
    """

    def __init__(self, fixed: Sequence[NodeClient], connect: Callable[[str], NodeClient] | None = None) -> None:
        self._fixed = {client.url: client for client in fixed}
        self._connect = connect
        self._lock = threading.Lock()
        self._every: dict[str, NodeClient] = dict(self._fixed)
        self._members: tuple[NodeClient, ...] = tuple(fixed)
        self._names: frozenset[str] = frozenset()  # of the announced members

    def client(self, url: str) -> NodeClient:
        """Raises NotFound for a node that was never known here."""
        try:
            return self._every[url]
        except KeyError:
            raise NotFound(f"{url} is not a node of this head.") from None

    def follow(self, urls: Collection[str]) -> None:
        """These are the announced nodes from here on. One that cannot be spoken to is left out."""
        with self._lock:
            self._set({url for url in urls if url not in self._fixed})

    def add(self, url: str) -> None:
        """A node has just announced itself."""
        with self._lock:
            if url not in self._fixed and url not in self._names:  # mostly it is known: each beat says so
                self._set(self._announced() | {url})

    def drop(self, url: str) -> None:
        """An announced node said good-bye; a fixed one stays."""
        with self._lock:
            self._set(self._announced() - {url})

    def tidy(self) -> None:
        """Closes connections that nobody has used for long, also to nodes that have left."""
        for client in list(self._every.values()):
            client.tidy()

    def _announced(self) -> set[str]:
        return {client.url for client in self._members if client.url not in self._fixed}

    def _set(self, urls: set[str]) -> None:
        found = []
        for url in sorted(urls):
            if url not in self._every and self._connect is not None:
                try:
                    self._every[url] = self._connect(url)
                except MeshnetError:
                    continue  # its row shows that it was announced, and nothing else can be done with it
            if url in self._every:
                found.append(self._every[url])
        self._members = (*self._fixed.values(), *found)
        self._names = frozenset(client.url for client in found)

    @overload
    def __getitem__(self, index: int) -> NodeClient: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[NodeClient]: ...
    def __getitem__(self, index: int | slice) -> NodeClient | Sequence[NodeClient]:
        return self._members[index]

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[NodeClient]:
        return iter(self._members)
