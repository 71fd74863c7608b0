"""Which layers of the model are online, as the nodes say: overview, command and metrics are faces of this."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from nodes.live import NodeSnapshot

#: A node that claims more is not believed: a number from a node decides how much is counted here.
MOST_LAYERS = 10_000


@dataclass(frozen=True)
class Serves:
    """What has to be equal for nodes to work together."""

    fingerprint: str
    dtype: str
    n_layers: int


@dataclass(frozen=True)
class Stretch:
    """Layers [start, end) that the same nodes hold; a gap when there is none."""

    start: int
    end: int
    urls: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.start}:{self.end}"


@dataclass(frozen=True)
class Coverage:
    """Stretches in layer order, without overlap, from the first layer to the last.

    `left_out` are nodes that answered and do not count, with the reason.
    """

    serves: Serves
    model: str
    stretches: tuple[Stretch, ...]
    left_out: dict[str, str]

    @property
    def gaps(self) -> tuple[Stretch, ...]:
        return tuple(stretch for stretch in self.stretches if not stretch.urls)

    @property
    def layers_online_min(self) -> int:
        """How many nodes hold the layer that the fewest hold; 0 when there is a gap."""
        return min(len(stretch.urls) for stretch in self.stretches)

    @property
    def layers_online(self) -> int:
        return sum(stretch.end - stretch.start for stretch in self.stretches if stretch.urls)


def cover(
    snapshots: Sequence[NodeSnapshot], *, serves: Serves | None = None, context_length: int = 0
) -> Coverage | None:
    """How ready nodes cover the layers of the model that `serves` names, else of the one that most nodes serve.

    Counted is what a new generation could use: nodes that drain, or take shorter texts than `context_length`, are
    left out. None when no node says what it serves and `serves` does not either.
    """
    holders = [holder for snapshot in snapshots if (holder := _Holder.read(snapshot)) is not None]
    if serves is None:
        kinds = Counter(holder.serves for holder in holders)
        if not kinds:
            return None
        serves = kinds.most_common(1)[0][0]
    left_out: dict[str, str] = {}
    counted: list[_Holder] = []
    for holder in holders:
        reason = holder.why_not(serves, context_length)
        if reason:
            left_out[holder.url] = reason
        else:
            counted.append(holder)
    model = next((holder.model for holder in holders if holder.serves == serves), "")
    return Coverage(serves, model, tuple(_stretches(counted, serves.n_layers)), left_out)


@dataclass(frozen=True)
class _Holder:
    """A node that says which layers of what it holds."""

    url: str
    serves: Serves
    model: str
    start: int
    end: int
    context_length: int
    state: str

    @classmethod
    def read(cls, snapshot: NodeSnapshot) -> _Holder | None:
        status = snapshot.status or {}
        start, end, n_layers = (_count(status.get(name)) for name in ("start_layer", "end_layer", "n_layers"))
        if start is None or end is None or n_layers is None or not start < end <= n_layers:
            return None
        return cls(
            url=snapshot.url,
            serves=Serves(str(status.get("fingerprint", "")), str(status.get("dtype", "")), n_layers),
            model=str(status.get("model", "")),
            start=start,
            end=end,
            context_length=_count(status.get("context_length"), most=1_000_000_000) or 0,
            state=snapshot.state,
        )

    def why_not(self, serves: Serves, context_length: int) -> str:
        if self.serves.fingerprint != serves.fingerprint or self.serves.n_layers != serves.n_layers:
            return "another model"
        if self.serves.dtype != serves.dtype:
            return f"another dtype ({self.serves.dtype:.20})"
        if self.context_length < context_length:
            return "shorter context"
        return "" if self.state == "ready" else self.state


def _stretches(holders: Iterable[_Holder], n_layers: int) -> list[Stretch]:
    holders = list(holders)
    cuts = sorted({0, n_layers, *(cut for holder in holders for cut in (holder.start, holder.end))})
    return [
        Stretch(start, end, tuple(holder.url for holder in holders if holder.start <= start < holder.end))
        for start, end in itertools.pairwise(cuts)
    ]


def _count(value: Any, *, most: int = MOST_LAYERS) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most else None
