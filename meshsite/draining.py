"""What a node is told and asked before it may be ended: to take no new session, and how many it still holds."""

from __future__ import annotations

import json
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit

#: A node that is silent for longer is asked again the next time.
SECONDS = 2.0


def drain(url: str, secret: str) -> bool:
    """Tells the node to take no new session; whether it heard. May be told again and again."""
    return _ask(url, secret, "POST", "/drain") is not None


def sessions_held(url: str, secret: str) -> int | None:
    """How many sessions the node holds; None when it does not say."""
    answer = _ask(url, secret, "GET", "/sessions")
    sessions = answer.get("sessions") if isinstance(answer, dict) else None
    return len(sessions) if isinstance(sessions, list) else None


def _ask(url: str, secret: str, method: str, path: str) -> Any:
    """The answer's JSON; None when there was none."""
    parts = urlsplit(url)
    connection = HTTPConnection(parts.hostname or "", parts.port, timeout=SECONDS)
    headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json", "Connection": "close"}
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        body = response.read()
        return json.loads(body) if response.status == 200 else None
    except (OSError, HTTPException, ValueError):
        return None
    finally:
        connection.close()
