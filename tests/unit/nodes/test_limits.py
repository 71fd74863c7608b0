from __future__ import annotations

from typing import Any

import pytest

from nodes.errors import BadRequest
from nodes.kv_sessions import StoreLimits
from nodes.limits import changed_limits

LIMITS = StoreLimits(600.0, 8, 1000, 10.0)


def test_what_is_named_changes_and_the_rest_stays() -> None:
    assert changed_limits(LIMITS, {"ttl_seconds": 5}, most_sessions=16) == StoreLimits(5.0, 8, 1000, 10.0)
    assert changed_limits(LIMITS, {"max_sessions": 16, "max_bytes": 7}, most_sessions=16) == StoreLimits(
        600.0, 16, 7, 10.0
    )


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({}, "ttl_seconds"),
        ([], "ttl_seconds"),
        (None, "ttl_seconds"),
        ({"active_seconds": 1}, "active_seconds"),
        ({"ttl_seconds": 0}, "ttl_seconds"),
        ({"ttl_seconds": "1"}, "ttl_seconds"),
        ({"ttl_seconds": True}, "ttl_seconds"),
        ({"ttl_seconds": float("nan")}, "ttl_seconds"),
        ({"ttl_seconds": 10**400}, "ttl_seconds"),
        ({"max_sessions": 2.0}, "max_sessions"),
        ({"max_sessions": 0}, "max_sessions"),
        ({"max_sessions": 17}, "16 at most"),
        ({"max_bytes": -1}, "max_bytes"),
    ],
)
def test_a_bad_change_is_refused_by_name(changes: Any, named: str) -> None:
    with pytest.raises(BadRequest, match=named):
        changed_limits(LIMITS, changes, most_sessions=16)
