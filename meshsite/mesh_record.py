"""Keeps what is written of a running mesh true while its nodes come, move and go: `mesh.json`, and the nodes' rows.

Rows of nodes that are gone for good are deleted by whoever started the mesh: a head's keeper would show them for a day.
It is done again later, since a keeper that has just asked the node writes its row once more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic

from meshsite.engine import NodeState
from nodes.mesh_file import MeshFile

#: After a node has gone its row is deleted so many seconds later. A round of a keeper takes less than the second pause.
FORGET_AFTER = (0.0, 10.0, 30.0)
#: What the database could not do now is tried again after so long: each try may hold up the main loop.
AGAIN_SECONDS = 10.0


class MeshRecord:
    """`forget` deletes rows by URL and says whether it could; else it is tried again later. Main thread only."""

    def __init__(
        self,
        mesh: MeshFile,
        var_dir: Path,
        forget: Callable[[Collection[str]], bool],
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.mesh = mesh
        self._var_dir = var_dir
        self._forget = forget
        self._clock = clock
        self._due: list[tuple[float, str]] = []

    def begin(self, states: Sequence[NodeState]) -> MeshFile:
        """The mesh is ready: its file is there from here on."""
        self.mesh = replace(self.mesh, nodes=urls_of(states))
        self.mesh.write(self._var_dir)
        return self.mesh

    def note(self, states: Sequence[NodeState]) -> None:
        """These nodes there are now; writes what has changed. What cannot be written is tried again the next time."""
        urls = urls_of(states)
        if urls != self.mesh.nodes:
            gone = set(self.mesh.nodes) - set(urls)
            mesh = replace(self.mesh, nodes=urls)
            try:
                mesh.write(self._var_dir)
            except OSError:  # a full disk is no reason to end a mesh that runs
                return
            self.mesh = mesh
            self._due += [(self._clock() + after, url) for url in sorted(gone) for after in FORGET_AFTER]
        due = [entry for entry in self._due if entry[0] <= self._clock()]
        if due:
            over = {url for _, url in due} - set(urls)  # an address may have a new node by now
            self._due = [entry for entry in self._due if entry not in due]
            if over and not self._forget(over):
                self._due += [(self._clock() + AGAIN_SECONDS, url) for url in sorted(over)]


def urls_of(states: Sequence[NodeState]) -> tuple[str, ...]:
    """Of the nodes that have a place, in layer order, those of a stretch side by side."""
    placed = [state for state in states if state.url]
    return tuple(state.url for state in sorted(placed, key=lambda state: (state.stage, state.replica)))
