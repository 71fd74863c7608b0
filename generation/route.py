"""Which nodes serve which layers for one generation. Pure functions: no HTTP, no clock, no database.

A step costs, on one node, its round trip plus its time for each layer it runs, and somewhat more beside other
generations. Both are linear in the number of layers, so that the cheapest route cuts only where some node's layers
begin or end: the joints. Between two joints one node is the cheapest, and from joint to joint the cheapest way is found
backwards from the last layer (dynamic programming).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from generation.errors import NoRoute
from nodes.coverage import MOST_LAYERS
from nodes.layers import LayerRange

#: What one fault of a node weighs, in milliseconds: more than any route, so that a faultless one is always taken.
PENALTY_MS = 1e7
#: What a node without a free slot weighs: more than any time, less than a fault.
FULL_MS = 1e5
#: What each other generation on a node adds to a step's time there: steps that wait run as one, so not much.
LOAD_SHARE = 0.2
#: Ways that differ by less are the same: rounding of sums, no measurement.
SAME_MS = 1e-6


@dataclass(frozen=True)
class RouteNode:
    """A ready node as the plan sees it. Times are milliseconds of a decode step."""

    url: str
    fingerprint: str
    dtype: str
    layers: LayerRange
    n_layers: int
    context_length: int
    #: Whether it runs a part of its layers when told to; a node of the old protocol always runs all.
    can_be_cut: bool = True
    #: What a step costs however many layers it runs: round trip, framing, HTTP.
    hop_ms: float = 1.0
    #: What each layer costs, for a session that is alone.
    layer_ms: float = 1.0
    #: Other generations that step there now.
    load: int = 0
    #: No slot is free: a prefill would be refused as busy.
    is_full: bool = False
    #: Its faults in a row that are not forgiven yet.
    faults: int = 0

    @property
    def fixed_ms(self) -> float:
        return self.hop_ms + FULL_MS * self.is_full + PENALTY_MS * self.faults

    @property
    def slope_ms(self) -> float:
        return self.layer_ms * (1 + LOAD_SHARE * self.load)

    def cost_ms(self, layers: int) -> float:
        """What a step through so many of its layers costs."""
        return self.fixed_ms + self.slope_ms * layers

    def at(self, hop_ms: float, layer_ms: float, load: int, is_full: bool, faults: int) -> RouteNode:
        """The same node at other costs; `replace` takes three times as long."""
        return RouteNode(
            self.url,
            self.fingerprint,
            self.dtype,
            self.layers,
            self.n_layers,
            self.context_length,
            self.can_be_cut,
            hop_ms,
            layer_ms,
            load,
            is_full,
            faults,
        )

    @classmethod
    def from_status(cls, url: str, status: dict[str, Any], **costs: Any) -> RouteNode | None:
        """The node that `/status` describes; None when it takes no sessions or the answer cannot be read."""
        try:
            if status["state"] != "ready":
                return None
            layers = LayerRange(int(status["start_layer"]), int(status["end_layer"]))
            if not 0 <= layers.start < layers.end <= MOST_LAYERS:
                return None
            return cls(
                url=url,
                fingerprint=str(status["fingerprint"]),
                dtype=str(status["dtype"]),
                layers=layers,
                n_layers=int(status["n_layers"]),
                context_length=int(status["context_length"]),
                can_be_cut="supports_kv_cache" in status,
                **costs,
            )
        except (KeyError, OverflowError, TypeError, ValueError):
            return None

    def can_run(self, start: int, end: int) -> bool:
        """What `plan` asks of many nodes at once."""
        if self.can_be_cut:
            return self.layers.start <= start < end <= self.layers.end
        return (self.layers.start, self.layers.end) == (start, end)


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
    #: A node on it had no free slot when it was planned.
    has_full_node: bool = False

    def as_json(self) -> list[dict[str, Any]]:
        return [{"node": hop.url, "start": hop.layers.start, "end": hop.layers.end} for hop in self.hops]


def plan(
    nodes: Sequence[RouteNode],
    *,
    fingerprint: str,
    dtype: str,
    n_layers: int,
    context_length: int = 0,
    prefer: Callable[[Sequence[RouteNode]], RouteNode] | None = None,
) -> Route:
    """The cheapest route over ready nodes of this very model and dtype; faults weigh most, then full nodes.

    Overlaps are cut, but never on a node that always runs all its layers: a layer that ran twice would be silent. A
    node that takes shorter texts than `context_length` is left out: it would refuse in the middle of one. `prefer`
    chooses among equally good nodes (default: the first). Raises NoRoute that names the uncovered layers and what was
    not usable.
    """
    usable = [
        node
        for node in nodes
        if node.fingerprint == fingerprint
        and node.dtype == dtype
        and node.context_length >= context_length
        and node.layers.start < n_layers
    ]
    joints = sorted({0, n_layers, *(n.layers.start for n in usable), *(min(n.layers.end, n_layers) for n in usable)})
    table = _Table(usable)
    costs = _cheapest(table, joints)
    last = len(joints) - 1
    best = np.full(last + 1, np.inf)
    best[last] = 0.0
    for here in reversed(range(last)):
        best[here] = (costs[here, here + 1 :] + best[here + 1 :]).min()
    if not np.isfinite(best[0]):
        raise NoRoute(_gap(nodes, usable, n_layers, fingerprint, dtype))
    hops: list[Hop] = []
    chosen: list[RouteNode] = []
    here = 0
    while here < last:
        totals = costs[here, here + 1 :] + best[here + 1 :]
        # Of ways that are equally good the one that reaches farthest, so that `prefer` chooses among like nodes.
        there = here + 1 + int(np.flatnonzero(totals <= best[here] + SAME_MS)[-1])
        start, end = joints[here], joints[there]
        equal = table.within(start, end, costs[here, there] + SAME_MS)
        node = prefer(equal) if prefer is not None else equal[0]
        chosen.append(node)
        hops.append(Hop(node.url, LayerRange(start, end)))
        here = there
    return Route(tuple(hops), fingerprint, has_full_node=any(node.is_full for node in chosen))


class _Table:
    """The nodes in columns: of a thousand, a look at each for every hop is what a plan would mostly take."""

    def __init__(self, nodes: Sequence[RouteNode]) -> None:
        self.nodes = nodes
        self.start = np.array([node.layers.start for node in nodes], dtype=np.int64)
        self.end = np.array([node.layers.end for node in nodes], dtype=np.int64)
        self.can_be_cut = np.array([node.can_be_cut for node in nodes], dtype=bool)
        self.fixed = np.array([node.fixed_ms for node in nodes])
        self.slope = np.array([node.slope_ms for node in nodes])

    def within(self, start: int, end: int, most_ms: float) -> list[RouteNode]:
        """Those that run these layers at that cost or less, in their order."""
        can = np.where(
            self.can_be_cut,
            (self.start <= start) & (self.end >= end),
            (self.start == start) & (self.end == end),
        )
        found = np.flatnonzero(can & (self.fixed + self.slope * (end - start) <= most_ms))
        return [self.nodes[index] for index in found.tolist()]


def _cheapest(table: _Table, joints: Sequence[int]) -> npt.NDArray[np.float64]:
    """[J, J]: the cost of the layers between two joints on the one node that runs them cheapest; inf where none can.

    Nodes of the same layers are taken together first, each number of layers for itself. A node that holds more than
    the stretch can run it too: that is a running minimum over earlier starts and later ends.
    """
    count = len(joints)
    place = {joint: index for index, joint in enumerate(joints)}
    at = np.array(joints)
    lengths = at[None, :] - at[:, None]
    distinct, which = np.unique(lengths, return_inverse=True)
    which = which.reshape(count, count)
    found: npt.NDArray[np.float64] = np.full((count, count, len(distinct)), np.inf)
    cuttable = table.can_be_cut
    if cuttable.any():
        fixed, slope = table.fixed[cuttable], table.slope[cuttable]
        starts, ends = table.start[cuttable], np.minimum(table.end[cuttable], joints[-1])
        spans = np.searchsorted(at, starts) * count + np.searchsorted(at, ends)
        order = np.argsort(spans, kind="stable")
        kinds, begins = np.unique(spans[order], return_index=True)
        values = fixed[order, None] + slope[order, None] * distinct[None, :]
        cheapest = np.minimum.reduceat(values, begins, axis=0)
        found[kinds // count, kinds % count] = cheapest
        for start in range(1, count):
            np.minimum(found[start], found[start - 1], out=found[start])
        for end in reversed(range(count - 1)):
            np.minimum(found[:, end], found[:, end + 1], out=found[:, end])
    rows, columns = np.indices((count, count))
    costs: npt.NDArray[np.float64] = np.where(rows < columns, found[rows, columns, which], np.inf)
    for index in np.flatnonzero(~cuttable).tolist():
        node = table.nodes[index]
        if node.layers.end in place:
            start, end = place[node.layers.start], place[node.layers.end]
            costs[start, end] = min(costs[start, end], node.cost_ms(node.layers.end - node.layers.start))
    return costs


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
