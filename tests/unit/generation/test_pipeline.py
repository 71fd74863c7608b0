from __future__ import annotations

import threading

import pytest

from generation.pipeline import MOST_WAITING, Pipeline


def test_every_piece_goes_through_every_stage_in_order() -> None:
    seen: list[list[int]] = [[], [], []]
    out: list[int] = []

    def stage(index: int, piece: int) -> int:
        seen[index].append(piece)
        return piece * 10

    stages = [lambda piece, index=index: stage(index, piece) for index in range(3)]
    Pipeline(stages).run([1, 2, 3, 4], out.append)
    assert seen == [[1, 2, 3, 4], [10, 20, 30, 40], [100, 200, 300, 400]]
    assert out == [1000, 2000, 3000, 4000]


def test_a_stage_has_the_next_piece_while_the_one_behind_it_works() -> None:
    both = threading.Barrier(2)

    def first(piece: int) -> int:
        if piece == 2:
            both.wait(5)
        return piece

    def second(piece: int) -> int:
        if piece == 1:
            both.wait(5)  # passes only when the first stage is at work on the next piece
        return piece

    out: list[int] = []
    Pipeline([first, second]).run([1, 2], out.append)
    assert out == [1, 2]


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_an_error_stops_the_flow_and_reaches_the_caller(bad: int) -> None:
    entered: list[list[int]] = [[], [], []]

    def stage(index: int, piece: int) -> int:
        entered[index].append(piece)
        if index == bad and piece == 2:
            raise ValueError(f"stage {index}")
        return piece

    out: list[int] = []
    with pytest.raises(ValueError, match=f"stage {bad}"):
        Pipeline([lambda piece, index=index: stage(index, piece) for index in range(3)]).run(range(1000), out.append)
    assert out in ([0, 1], [0], [])
    assert len(entered[0]) <= 3 + 2 * (MOST_WAITING + 2), "no stage runs far ahead of the one behind it"
    assert all(threading.current_thread() is thread or "piece" not in thread.name for thread in threading.enumerate())


def test_one_stage_runs_on_the_callers_thread() -> None:
    threads: list[int] = []

    def stage(piece: int) -> int:
        threads.append(threading.get_ident())
        return piece

    Pipeline([stage]).run([1, 2], lambda piece: None)
    assert set(threads) == {threading.get_ident()}


def test_an_error_of_whoever_is_told_reaches_the_caller() -> None:
    def told(piece: int) -> None:
        raise RuntimeError("told")

    with pytest.raises(RuntimeError, match="told"):
        Pipeline([lambda piece: piece, lambda piece: piece]).run([1, 2, 3], told)


def test_no_piece_is_no_flow() -> None:
    out: list[int] = []
    Pipeline([lambda piece: piece, lambda piece: piece]).run([], out.append)
    assert out == []
