from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodes.layers import LayerRange, split_evenly


@pytest.mark.parametrize("text", ["0:15", " 3:4 ", "15:30"])
def test_a_stretch_is_read_and_written_the_same_way(text: str) -> None:
    assert str(LayerRange.parse(text)) == text.strip()


@pytest.mark.parametrize("text", ["", "5", "5:", ":5", "a:b", "-1:3", "1:2:3", "1.5:3", "0:9999999"])
def test_anything_else_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="is not start:end"):
        LayerRange.parse(text)


@pytest.mark.parametrize("text", ["3:3", "4:3"])
def test_a_stretch_without_a_layer_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="holds no layer"):
        LayerRange.parse(text)


def test_the_end_is_not_in_it() -> None:
    layers = LayerRange(2, 5)
    assert [layer for layer in range(8) if layer in layers] == [2, 3, 4]
    assert layers.size == 3


def test_it_holds_what_lies_within_it() -> None:
    assert LayerRange(2, 5).holds(LayerRange(2, 5))
    assert LayerRange(2, 5).holds(LayerRange(3, 4))
    assert not LayerRange(2, 5).holds(LayerRange(1, 4))
    assert not LayerRange(2, 5).holds(LayerRange(4, 6))


def test_the_larger_shards_come_first() -> None:
    assert [str(layers) for layers in split_evenly(30, 4)] == ["0:8", "8:16", "16:23", "23:30"]


@given(st.integers(1, 200), st.integers(1, 200))
def test_a_split_covers_every_layer_once_and_evenly(n_layers: int, shards: int) -> None:
    if shards > n_layers:
        with pytest.raises(ValueError, match=f"split into 1 to {n_layers} shards, not {shards}"):
            split_evenly(n_layers, shards)
        return
    ranges = split_evenly(n_layers, shards)
    assert [layer for layers in ranges for layer in range(layers.start, layers.end)] == list(range(n_layers))
    sizes = [layers.size for layers in ranges]
    assert len(sizes) == shards
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1
