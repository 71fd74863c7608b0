"""Which nodes serve which layers for one generation. Pure functions: no HTTP, no clock, no database."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from generation.errors import NoRoute
from nodes.layers import LayerRange


@dataclass(frozen=True)
class RouteNode:
    """A ready node as the plan sees it."""

    url: str
    fingerprint: str
    dtype: str
    layers: LayerRange
    n_layers: int
    context_length: int
    #: Whether it runs a part of its layers when told to; a node of the old protocol always runs all.
    can_be_cut: bool = True

    def can_run(self, start: int, end: int) -> bool:
        if self.can_be_cut:
            return self.layers.start <= start < end <= self.layers.end
        return (self.layers.start, self.layers.end) == (start, end)

    @classmethod
    def from_status(cls, url: str, status: dict[str, Any]) -> RouteNode | None:
        """The node that `/status` describes; None when it takes no sessions or the answer cannot be read."""
        try:
            if status["state"] != "ready":
                return None
            return cls(
                url=url,
                fingerprint=str(status["fingerprint"]),
                dtype=str(status["dtype"]),
                layers=LayerRange(int(status["start_layer"]), int(status["end_layer"])),
                n_layers=int(status["n_layers"]),
                context_length=int(status["context_length"]),
                can_be_cut="supports_kv_cache" in status,
            )
        except (KeyError, TypeError, ValueError):
            return None


@dataclass(frozen=True)
class Hop:
    """One node's part of a route."""

    url: str
    layers: LayerRange


@dataclass(frozen=True)
class Route:
    """Hops that run every layer exactly once, in order; the last one ends the model and samples."""

    hops: tuple[Hop, ...]
    fingerprint: str

    def as_json(self) -> list[dict[str, Any]]:
        return [{"node": hop.url, "start": hop.layers.start, "end": hop.layers.end} for hop in self.hops]


def plan(
    nodes: Sequence[RouteNode],
    *,
    fingerprint: str,
    dtype: str,
    n_layers: int,
    context_length: int = 0,
    avoid: Collection[str] = (),
    prefer: Callable[[Sequence[RouteNode]], RouteNode] | None = None,
) -> Route:
    """Through the fewest nodes of `avoid`, and then the fewest hops: ready nodes of this very model and dtype.

    Overlaps are cut, but never on a node that always runs all its layers: a layer that ran twice would be silent. A
    node that takes shorter texts than `context_length` is left out: it would refuse in the middle of one. `prefer`
    chooses among equally good nodes (default: the first). Raises NoRoute that names the uncovered layers and what was
    not usable.
    """
    usable = [
        node
        for node in nodes
        if (node.fingerprint, node.dtype) == (fingerprint, dtype) and node.context_length >= context_length
    ]
    # Where a cut may be needed: where some node's layers begin or end. From the last to the first, the best way on.
    joints = sorted({0, n_layers, *(n.layers.start for n in usable), *(min(n.layers.end, n_layers) for n in usable)})
    best: dict[int, tuple[int, int]] = {n_layers: (0, 0)}
    ways: dict[int, list[tuple[RouteNode, int]]] = {}
    for start in reversed(joints[:-1]):
        for node in usable:
            for end in joints:
                if end not in best or not node.can_run(start, end):
                    continue
                avoided, hops = best[end]
                cost = (avoided + (node.url in avoid), hops + 1)
                if start not in best or cost < best[start]:
                    best[start], ways[start] = cost, []
                if cost == best[start]:
                    ways[start].append((node, end))
    if 0 not in ways:
        raise NoRoute(_gap(nodes, usable, n_layers, fingerprint, dtype))
    found: list[Hop] = []
    position = 0
    while position < n_layers:
        options = ways[position]
        # Of ways that are equally good the one that reaches farthest, so that `prefer` chooses among like nodes.
        reach = max(end for _, end in options)
        equal = [node for node, end in options if end == reach]
        chosen = prefer(equal) if prefer is not None else equal[0]
        found.append(Hop(chosen.url, LayerRange(position, reach)))
        position = reach
    return Route(tuple(found), fingerprint)


def _gap(nodes: Sequence[RouteNode], usable: Sequence[RouteNode], n_layers: int, fingerprint: str, dtype: str) -> str:
    layer = next((i for i in range(n_layers) if not any(i in node.layers for node in usable)), None)
    if layer is None:
        text = "Every layer is covered, but only by nodes that overlap and cannot run a part of their layers."
    else:
        end = min((node.layers.start for node in usable if node.layers.start > layer), default=n_layers)
        text = f"No ready node holds layers {layer}:{end} of {n_layers}."
    strangers = len(nodes) - len(usable)
    if strangers:
        text += f" {strangers} nodes were left out: not {fingerprint} in {dtype}, or with a shorter context."
    return text
