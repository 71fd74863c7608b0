from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodes.layer_offer import choose_layers, coverage_counts
from nodes.layers import LayerRange


def at_most(layers: int, tail: int = 0, n_layers: int = 0) -> object:
    return lambda stretch: stretch.size + (tail if stretch.end == n_layers else 0) <= layers


def chosen(n_layers: int, held: list[tuple[int, int]], size: int, tail: int = 0) -> str:
    ranges = [LayerRange(*pair) for pair in held]
    return str(choose_layers(n_layers, ranges, at_most(size, tail, n_layers)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("held", "size", "offered"),
    [
        ([], 30, "0:30"),
        ([], 12, "0:12"),
        ([(0, 15)], 15, "15:30"),
        ([(15, 30)], 15, "0:15"),
        # Part of a gap: where another stretch ends, so that the rest is one gap too.
        ([(0, 15)], 10, "15:25"),
        ([(10, 20)], 5, "0:5"),
        # Whole stretches rather than a piece of a second one,
        ([(0, 15)], 18, "15:30"),
        # but all that fits when it is whole.
        ([(0, 15)], 30, "0:30"),
        ([(0, 15), (15, 30)], 30, "0:30"),
        # No gap: what is held once is held twice, as far as the memory goes.
        ([(0, 15), (15, 30)], 20, "0:20"),
        ([(0, 15), (15, 30), (0, 15)], 20, "15:30"),
        # A gap in the middle is worse than anything that is held once.
        ([(0, 10), (20, 30)], 10, "10:20"),
        ([(0, 10), (12, 30), (0, 10)], 4, "10:12"),
        ([(0, 12), (10, 30)], 30, "0:30"),
        # Nodes of a longer model do not confuse.
        ([(0, 40)], 30, "0:30"),
        ([(0, 15)], 0, "None"),
    ],
)
def test_the_stretch_that_helps_most_is_offered(held: list[tuple[int, int]], size: int, offered: str) -> None:
    assert chosen(30, held, size) == offered


def test_the_tail_weighs_more() -> None:
    assert chosen(30, [(0, 15)], 15, tail=5) == "15:29"
    assert chosen(30, [(0, 15), (15, 29)], 5, tail=5) == "0:5", "what is missing does not fit"
    assert chosen(30, [(0, 15), (15, 29)], 6, tail=5) == "29:30"


def test_layers_are_counted_that_the_model_has() -> None:
    assert coverage_counts(4, [LayerRange(0, 2), LayerRange(1, 9), LayerRange(7, 9)]) == [1, 2, 1, 1]


STRETCH = st.tuples(st.integers(0, 9), st.integers(1, 10)).map(
    lambda pair: LayerRange(min(pair), max(pair) + (pair[0] == pair[1]))
)
MESH = st.tuples(
    st.integers(1, 10),
    st.lists(STRETCH, max_size=5),
    st.lists(st.integers(0, 4), min_size=10, max_size=10),
    st.integers(0, 5),
    st.integers(0, 25),
)


def best(n_layers: int, held: list[LayerRange], fits: object) -> tuple[int, ...] | None:
    """The score of the best of all stretches, by the rules of the module and no cleverness."""
    counts = coverage_counts(n_layers, held)
    cuts = {0, n_layers} | {min(cut, n_layers) for layers in held for cut in (layers.start, layers.end)}
    levels = sorted(set(counts))
    scores = []
    for start in range(n_layers):
        for end in range(start + 1, n_layers + 1):
            if fits(LayerRange(start, end)):  # type: ignore[operator]
                covered = [sum(counts[layer] == level for layer in range(start, end)) for level in levels]
                ends = (start in cuts) + (end in cuts)
                scores.append((covered[0], ends, *covered[1:], -start))
    return max(scores, default=None)


@given(MESH)
def test_it_never_leaves_the_model_always_fits_and_no_stretch_is_better(
    mesh: tuple[int, list[LayerRange], list[int], int, int],
) -> None:
    n_layers, held, weights, tail, memory = mesh

    def fits(layers: LayerRange) -> bool:
        needed = sum(1 + weight for weight in weights[layers.start : layers.end])
        return needed + (tail if layers.end == n_layers else 0) <= memory

    offered = choose_layers(n_layers, held, fits)
    expected = best(n_layers, held, fits)
    if offered is None:
        assert expected is None
        return
    assert 0 <= offered.start < offered.end <= n_layers
    assert fits(offered)
    counts = coverage_counts(n_layers, held)
    cuts = {0, n_layers} | {min(cut, n_layers) for layers in held for cut in (layers.start, layers.end)}
    covered = [
        sum(counts[layer] == level for layer in range(offered.start, offered.end)) for level in sorted(set(counts))
    ]
    ends = (offered.start in cuts) + (offered.end in cuts)
    assert (covered[0], ends, *covered[1:], -offered.start) == expected
