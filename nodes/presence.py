"""How a node is known to the head, and whether it is still there, in words for people."""

from __future__ import annotations

from datetime import datetime

from django.conf import settings

from nodes.announcements import static_urls
from nodes.models import Node, longest_silence


def presence(row: Node, now: datetime) -> str:
    """`from MESHNET_NODES`, `announces itself`, `left …` or `offline since …`; empty for what is neither.

    A node of the settings stays one, whatever it announces.
    """
    if row.url in static_urls():
        return "from MESHNET_NODES"
    if row.announced_at is None:
        return ""
    if row.left_at is not None:
        return f"left {_moment(row.left_at)}"
    if row.announced_at <= now - longest_silence():
        return f"offline since {_moment(row.announced_at)}"
    source = f" from {row.announced_from}" if row.announced_from else ""
    draining = ", draining" if row.state == "draining" else ""
    return f"announces itself{source}{draining}"


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} {settings.TIME_ZONE}"
