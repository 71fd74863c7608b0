from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from nodes.errors import BadRequest
from nodes.live import NodeSnapshot
from nodes.node_page import last_errors, limit_changes, limit_fields, started_at
from nodes.snapshots import SeenNode


def seen(status: Any = None, limits: Any = None) -> SeenNode:
    snapshot = NodeSnapshot("http://a", status or {}, {"sessions": [], "limits": limits or {}}, None, "ready")
    return SeenNode(snapshot, snapshot, 0.0, None)


LIMITS = {"ttl_seconds": 600.0, "max_sessions": 8, "max_bytes": 2 * 1024**3}


def test_the_form_shows_the_exact_limits() -> None:
    assert [field.value for field in limit_fields(seen(limits=LIMITS))] == ["600", "8", "2147483648"]
    assert [field.value for field in limit_fields(seen(limits={"max_bytes": "odd"}))] == ["", "", ""]


def test_what_the_form_shows_changes_nothing() -> None:
    node = seen(limits=LIMITS)
    assert limit_changes({field.name: field.value for field in limit_fields(node)}, node) == {}


def test_only_what_differs_is_asked_for() -> None:
    form = {"ttl_seconds": "1.5", "max_sessions": " 9 ", "max_bytes": "", "other": "7"}
    assert limit_changes(form, seen(limits=LIMITS)) == {"ttl_seconds": 1.5, "max_sessions": 9}
    assert limit_changes(form, None) == {"ttl_seconds": 1.5, "max_sessions": 9}


@pytest.mark.parametrize("text", ["-1", "1.5", "²", "many", "1e3"])
def test_a_count_is_a_whole_number(text: str) -> None:
    with pytest.raises(BadRequest, match="is not a whole number"):
        limit_changes({"max_sessions": text}, seen(limits=LIMITS))


def test_errors_of_any_shape_are_shown_as_far_as_they_go() -> None:
    errors = [{"at": 1_700_000_000, "code": "busy", "detail": "x" * 999}, {"at": "yesterday"}, None]
    first, second = last_errors(seen({"work": {"errors": errors}}))
    assert (first.at, first.code, len(first.detail)) == (datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC), "busy", 200)
    assert (second.at, second.code) == (None, "")
    assert last_errors(seen({"work": {"errors": "none"}})) == last_errors(seen()) == []


@pytest.mark.parametrize("moment", [None, "x", float("nan"), 1e30])
def test_a_start_that_is_no_moment_is_unknown(moment: Any) -> None:
    assert started_at(seen({"started_at": moment})) is None
