"""Reads one field of a request: the right type and range, or a RequestRefused that names it.

null means absent. Booleans are not numbers, and 3.0 is not a whole number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from generation.errors import RequestRefused

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


def refuse(message: str, param: str, *, code: str = "invalid_value") -> RequestRefused:
    return RequestRefused(message, param=param, code=code)


def wrong_type(param: str, expected: str) -> RequestRefused:
    return refuse(f"'{param}' must be {expected}.", param, code="invalid_type")


def missing(param: str) -> RequestRefused:
    return refuse(f"'{param}' is missing.", param, code="missing_required_parameter")


def unsupported(param: str, why: str = "is not supported here with this value") -> RequestRefused:
    return refuse(f"'{param}' {why}.", param, code="unsupported_parameter")


def text(body: Mapping[str, Any], name: str) -> str | None:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise wrong_type(name, "a string")
    return value


def boolean(body: Mapping[str, Any], name: str, default: bool = False, *, param: str | None = None) -> bool:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise wrong_type(param or name, "true or false")
    return value


def integer(body: Mapping[str, Any], name: str, *, least: int = INT64_MIN, most: int = INT64_MAX) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if not is_whole(value):
        raise wrong_type(name, "a whole number")
    if not least <= value <= most:
        raise refuse(f"'{name}' must be at least {least} and at most {most}.", name)
    return int(value)


def number(
    body: Mapping[str, Any],
    name: str,
    default: float,
    *,
    least: float,
    most: float,
    above: bool = False,
) -> float:
    """`above`: `least` itself is not allowed."""
    value = body.get(name)
    if value is None:
        return default
    # 1e999 is read as infinity, which the range refuses.
    if not is_number(value):
        raise wrong_type(name, "a number")
    if not least <= value <= most or (above and value == least):
        lower = f"above {least:g}" if above else f"at least {least:g}"
        raise refuse(f"'{name}' must be {lower} and at most {most:g}.", name)
    return float(value)


def mapping(body: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    value = body.get(name)
    if value is not None and not isinstance(value, dict):
        raise wrong_type(name, "an object")
    return value


def is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
