"""The kill matrix in short: each fault three times, over stages, moments and both ways to choose a token."""

from __future__ import annotations

import itertools

import pytest

from tests.chaos.matrix import FAULTS, MOMENTS, Cell, Matrix, every_cell, some_cells


@pytest.mark.parametrize("cell", some_cells(2 * len(FAULTS)), ids=str)
def test_a_generation_outlives_a_node_of_its_route(matrix: Matrix, cell: Cell) -> None:
    matrix.check(cell)


def test_the_whole_matrix_is_every_node_moment_and_fault_both_ways() -> None:
    cells = set(every_cell())
    assert cells == {Cell(*each) for each in itertools.product(range(3), MOMENTS, FAULTS, (False, True))}


def test_a_few_cells_meet_every_fault_stage_moment_and_way() -> None:
    cells = some_cells(2 * len(FAULTS))
    assert len(set(cells)) == len(cells)
    assert {cell.fault for cell in cells} == set(FAULTS)
    assert {cell.moment for cell in cells} == set(MOMENTS)
    assert {(cell.stage, cell.is_sampled) for cell in cells} == set(itertools.product(range(3), (False, True)))
