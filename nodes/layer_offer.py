"""Which layers a machine that joins should hold. Pure functions over numbers: no database, no model, no clock.

The stretch that helps most is chosen, by these rules in this order:

1. as many as possible of the layers that the fewest nodes hold (a gap before anything else);
2. ends at existing boundaries, since whole stretches can stand in for each other and pieces of them cannot;
3. as many as possible of the layers that the second fewest hold, then of the third, and so on: memory that the machine
   has is used;
4. the earlier stretch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

from nodes.layers import LayerRange

#: Whether the machine can hold these layers. Part of what fits need not fit: layers that share keys stay together.
Fits = Callable[[LayerRange], bool]
#: Larger is better.
Score = tuple[int, ...]


def coverage_counts(n_layers: int, held: Sequence[LayerRange]) -> list[int]:
    """How many of the stretches hold each layer. Whatever lies outside the model is left out."""
    steps = [0] * (n_layers + 1)
    for layers in held:
        start, end = min(layers.start, n_layers), min(layers.end, n_layers)
        steps[start] += 1
        steps[end] -= 1
    return list(accumulate(steps[:n_layers]))


def choose_layers(n_layers: int, held: Sequence[LayerRange], fits: Fits) -> LayerRange | None:
    """The stretch to offer beside those that are held already; None when no single layer fits.

    Looks at n_layers times the number of boundaries stretches. `fits` must hold for every shorter stretch with the
    same start, the end of the model (whose tail is heavier) left aside.
    """
    counts = coverage_counts(n_layers, held)
    levels = sorted(set(counts))
    sums = {level: [0, *accumulate(int(count == level) for count in counts)] for level in levels}
    cuts = {0, n_layers, *(min(cut, n_layers) for layers in held for cut in (layers.start, layers.end))}

    def score(layers: LayerRange) -> Score:
        covered = [sums[level][layers.end] - sums[level][layers.start] for level in levels]
        ends = (layers.start in cuts) + (layers.end in cuts)
        return (covered[0], ends, *covered[1:], -layers.start)

    found: list[LayerRange] = []
    for start in range(n_layers):
        ends = {*(cut for cut in cuts if cut > start), _longest(start, n_layers, fits)}
        found += [layers for end in ends if end > start and fits(layers := LayerRange(start, end))]
    return max(found, key=score, default=None)


def _longest(start: int, n_layers: int, fits: Fits) -> int:
    """The largest end, short of the model's, with which the stretch fits; `start` when there is none."""
    low, high = start, n_layers - 1
    while low < high:
        middle = (low + high + 1) // 2
        if fits(LayerRange(start, middle)):
            low = middle
        else:
            high = middle - 1
    return low
