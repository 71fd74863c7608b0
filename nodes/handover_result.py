"""The request for the result of a step that nodes handed over to each other, without a web framework."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nodes import wire
from nodes.errors import BadRequest, NotFound
from nodes.handover import is_nonce

if TYPE_CHECKING:
    from nodes.handing_over import HandingOver


def result(handing_over: HandingOver, query: Mapping[str, str], session_id: str, nonce: str) -> dict[str, Any]:
    """The result as JSON, or an empty object when it is not there in time. Raises NotFound or BadRequest."""
    if not wire.is_session_id(session_id) or not is_nonce(nonce):
        raise NotFound("This is not the id of a step.")
    return handing_over.result(session_id, nonce, _seconds(query.get("wait", "0"))) or {}


def _seconds(value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= 1e9:
        raise BadRequest("wait must be a number of seconds, 0 or more.")
    return seconds
