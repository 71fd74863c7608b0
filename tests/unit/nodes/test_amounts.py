from __future__ import annotations

from typing import Any

import pytest

from nodes.amounts import MISSING, human_bytes, human_seconds, parse_bytes, parse_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("90", 90), ("1.5s", 1.5), ("10m", 600), ("1h", 3600), ("2d", 172800), (" 3 m ", 180)],
)
def test_a_stretch_of_time_is_read(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "-1", "1e3", "nan", "inf", "1 week", "10ms", "1h30m"])
def test_anything_else_is_refused_with_advice(text: str) -> None:
    with pytest.raises(ValueError, match="90s, 10m, 1h, 2d"):
        parse_seconds(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"), (-0.4, "0.0 s"), (3.21, "3.2 s"), (9.99, "10.0 s"), (10, "10 s"), (59.6, "1 m"),
        (60, "1 m"), (200, "3 m 20 s"), (3600, "1 h"), (7500, "2 h 5 m"), (90000, "1 d 1 h"),
    ],
)  # fmt: skip
def test_seconds_are_written(seconds: float, text: str) -> None:
    assert human_seconds(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (150 * 1024**2, "150 MiB"), (2 * 1024**3, "2.0 GiB")],
)
def test_bytes_are_written(count: int, text: str) -> None:
    assert human_bytes(count) == text


@pytest.mark.parametrize("value", [None, "12", True, float("nan"), float("inf"), []])
def test_what_is_not_a_number_is_missing(value: Any) -> None:
    assert human_seconds(value) == MISSING
    assert human_bytes(value) == MISSING


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("8GiB", 8 * 1024**3), ("8GB", 8 * 10**9), ("8192MiB", 8 * 1024**3), (" 8 gib ", 8 * 1024**3), ("7", 7),
        ("512 B", 512), ("1.5KiB", 1536), ("2TB", 2 * 10**12), ("999999999999999", 999999999999999),
    ],
)  # fmt: skip
def test_a_size_is_read(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "GiB", "8G", "8 GiBs", "-1GiB", "1e9", "nan", "8,5GiB", "٨GiB", "8GiB 2MiB"])
def test_any_other_size_is_refused_with_advice(text: str) -> None:
    with pytest.raises(ValueError, match="8GiB, 8GB, 8192MiB"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["0", "0GiB", "0.1B"])
def test_no_memory_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="no memory"):
        parse_bytes(text)
