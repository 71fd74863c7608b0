from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import torch

from nodes import machine_speed
from nodes.machine_speed import measure_speed, two_digits


def ticks(*times: float) -> Iterator[float]:
    yield from times
    yield from count(times[-1] + 100)


def test_it_is_the_bytes_of_all_matrices_by_the_fastest_pass() -> None:
    # The end is set at 0; a pass from 1 to 5, a look at 6, a pass from 7 to 9, and the end is over.
    clock = ticks(0, 1, 5, 6, 7, 9, 11).__next__
    size = 3 * 16 * 16 * 4
    assert measure_speed(width=16, matrices=3, seconds=10, clock=clock) == two_digits(size / 2)


@pytest.mark.parametrize(("dtype", "size"), [("bfloat16", 2), ("float32", 4)])
def test_it_counts_the_bytes_of_the_dtype(dtype: str, size: int) -> None:
    clock = ticks(0, 1, 2, 100).__next__
    assert measure_speed(dtype=dtype, width=32, matrices=1, seconds=10, clock=clock) == two_digits(32 * 32 * size)


def test_the_matrices_are_larger_than_caches() -> None:
    assert machine_speed.MATRICES * machine_speed.WIDTH**2 * 4 > 150e6


def test_memory_is_counted_where_the_device_computes(monkeypatch: Any) -> None:
    monkeypatch.setattr(machine_speed, "available_bytes", lambda: 7)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (80, 90))
    assert (machine_speed.free_bytes("cpu"), machine_speed.free_bytes("cuda:0")) == (7, 80)


def test_two_digits_are_kept() -> None:
    assert [two_digits(value) for value in (12_345_678_901.0, 987.0, 1.26)] == [12_000_000_000.0, 990.0, 1.3]


def test_threads_are_set_for_this_process_when_named() -> None:
    before = torch.get_num_threads()
    try:
        measure_speed(width=8, matrices=1, seconds=0, threads=1)
        assert torch.get_num_threads() == 1
        measure_speed(width=8, matrices=1, seconds=0)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_a_process_of_its_own_prints_the_number(monkeypatch: Any, capsys: Any) -> None:
    asked = {}
    monkeypatch.setattr(machine_speed, "measure_speed", lambda **options: asked.update(options) or 1.2e10)
    monkeypatch.setattr("sys.argv", ["machine_speed", "--threads", "3", "--dtype", "bfloat16"])
    machine_speed.main()
    assert float(capsys.readouterr().out) == 1.2e10
    assert asked == {"device": "cpu", "dtype": "bfloat16", "threads": 3}
