from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from nodes.models import Node
from nodes.presence import presence

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
URL = "http://127.0.0.1:8001"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, ""),
        ({"announced_at": NOW}, "announces itself"),
        ({"announced_at": NOW, "announced_from": "10.0.0.7"}, "announces itself from 10.0.0.7"),
        ({"announced_at": NOW, "state": "draining"}, "announces itself, draining"),
        ({"announced_at": NOW - timedelta(seconds=14)}, "announces itself"),
        ({"announced_at": NOW - timedelta(seconds=15)}, "offline since 2026-11-30 11:59:45 UTC"),
        ({"announced_at": NOW, "left_at": NOW - timedelta(hours=1)}, "left 2026-11-30 11:00:00 UTC"),
    ],
)
def test_it_says_how_a_node_is_known_and_whether_it_is_there(fields: dict[str, Any], says: str, settings: Any) -> None:
    assert presence(Node(url=URL, **fields), NOW) == says
    settings.MESHNET_NODES = [f"{URL}/"]
    assert presence(Node(url=URL, **fields), NOW) == "from MESHNET_NODES"
