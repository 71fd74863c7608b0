"""What the tests of the admin's pages share."""

from __future__ import annotations

import re
from typing import Any

from django.contrib.messages import get_messages
from django.utils import timezone

from nodes.models import Node
from tests.unit.nodes.fake_node import FakeNode


def text_of(response: Any) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", response.content.decode()))


def said(response: Any) -> list[str]:
    return [str(message) for message in get_messages(response.wsgi_request)]


def row(node: FakeNode | str, **fields: Any) -> Node:
    return Node.objects.create(url=node if isinstance(node, str) else node.url, seen_at=timezone.now(), **fields)
