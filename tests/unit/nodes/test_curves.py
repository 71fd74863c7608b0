from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from nodes.curves import HEIGHT, MOST_LINES, WIDTH, Curve, curves
from nodes.samples import Point

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def points(*sessions: int, until: float = 0.0, every: float = 15.0) -> list[Point]:
    """Samples that end `until` seconds ago."""
    count = len(sessions)
    return [
        Point(NOW - timedelta(seconds=until + every * (count - 1 - index)), number, number * 1024, index, 30 * index)
        for index, number in enumerate(sessions)
    ]


def drawn(by_node: dict[str, Sequence[Point]]) -> dict[str, Curve]:
    found = curves(by_node, now=NOW, seconds=15, colours={"http://a": 3})
    return {curve.key: curve for curve in found}


def test_there_are_four_curves_with_their_newest_value_and_their_top() -> None:
    found = drawn({"http://a": points(2, 8, 4)})
    assert {key: (curve.latest, curve.top) for key, curve in found.items()} == {
        "sessions": ("4", "8"),
        "bytes": ("4.0 KiB", "8.0 KiB"),
        "evictions": ("4.0", "4.0"),
        "tokens": ("2.0", "2.0"),
    }
    assert found["sessions"].lines[0].colour == 3


def test_time_runs_to_the_right_and_numbers_upwards() -> None:
    (piece,) = drawn({"http://a": points(0, 8, until=0)})["sessions"].lines[0].pieces
    (x0, y0), (x1, y1) = (map(float, spot.split(",")) for spot in piece.split())
    assert x0 < x1 == WIDTH
    assert y1 < y0 == HEIGHT - 2


def test_a_hole_in_the_samples_is_a_hole_in_the_line() -> None:
    series = [*points(1, 1, 1, until=600), *points(2, 2, 2)]
    assert len(drawn({"http://a": series})["sessions"].lines[0].pieces) == 2


def test_a_single_sample_can_be_seen() -> None:
    (piece,) = drawn({"http://a": points(5)})["sessions"].lines[0].pieces
    assert len(piece.split()) == 2


@pytest.mark.parametrize(("other", "latest"), [(4, "4 each"), (9, "4 to 9")])
def test_a_few_nodes_are_a_line_each(other: int, latest: str) -> None:
    curve = drawn({"http://a": points(2, 4), "http://b": points(2, other)})["sessions"]
    assert (len(curve.lines), curve.latest) == (2, latest)


def test_many_nodes_are_one_line_their_sum() -> None:
    crowd = {f"http://{number}": points(1, 2) for number in range(MOST_LINES + 1)}
    curve = drawn(dict(crowd))["sessions"]
    assert [line.label for line in curve.lines] == ["all nodes"]
    assert curve.latest == str(2 * (MOST_LINES + 1))
    assert f"{MOST_LINES + 1} nodes" in curve.title


def test_old_samples_have_no_value_now() -> None:
    assert drawn({"http://a": points(3, 3, until=900)})["sessions"].latest == "-"


def test_without_samples_there_are_four_empty_curves() -> None:
    assert [(curve.latest, curve.lines) for curve in drawn({}).values()] == [("-", [])] * 4
