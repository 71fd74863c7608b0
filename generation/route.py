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
    """The fewest hops through ready nodes of this very model and dtype; overlaps are cut.

    A node that takes shorter texts than `context_length` is left out: it would refuse in the middle of one.

    `avoid` are URLs to use only when nothing else covers a layer. `prefer` chooses among nodes that reach equally
    far (default: the first). Raises NoRoute that names the first uncovered layer and what was not usable.
    """
    usable = [
        node
        for node in nodes
        if (node.fingerprint, node.dtype) == (fingerprint, dtype) and node.context_length >= context_length
    ]
    hops: list[Hop] = []
    position = 0
    while position < n_layers:
        covering = [node for node in usable if position in node.layers]
        if not covering:
            raise NoRoute(_gap(nodes, usable, position, n_layers, fingerprint, dtype))
        covering = [node for node in covering if node.url not in avoid] or covering
        reach = max(node.layers.end for node in covering)
        equal = [node for node in covering if node.layers.end == reach]
        chosen = prefer(equal) if prefer is not None else equal[0]
        hops.append(Hop(chosen.url, LayerRange(position, min(reach, n_layers))))
        position = reach
    return Route(tuple(hops), fingerprint)


def _gap(
    nodes: Sequence[RouteNode], usable: Sequence[RouteNode], position: int, n_layers: int, fingerprint: str, dtype: str
) -> str:
    next_start = min((node.layers.start for node in usable if node.layers.start > position), default=n_layers)
    text = f"No ready node holds layers {position}:{next_start} of {n_layers}."
    strangers = len(nodes) - len(usable)
    if strangers:
        text += f" {strangers} nodes were left out: not {fingerprint} in {dtype}, or with a shorter context."
    return text
