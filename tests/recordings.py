"""Recorded exchanges of the node protocol: their form on disk, and how one is sent again and compared.

`python -m tests.record` makes them, tests/integration/test_recordings.py replays them, docs/protocol.md explains them.
"""

from __future__ import annotations

import http.client
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load

from tests.processes import ROOT
from tests.toys import BAR

FOLDER = ROOT / "docs" / "recordings"
#: Stands for the fingerprint of the model that the node serves, which it says itself in `/status`.
FINGERPRINT = "$FINGERPRINT"
#: Headers of an answer that a head acts on. Their values are compared, except those of `Server-Timing`.
ANSWER_HEADERS = (
    "Content-Type",
    "X-Meshnet-Past-Len",
    "Server-Timing",
    "Retry-After",
    "Allow",
    "WWW-Authenticate",
    "Connection",
)
TIMING = re.compile(r"queue;dur=[0-9.]+, compute;dur=[0-9.]+")
#: Fields whose values belong to one process, one moment or one release: only their presence and kind are compared.
VARIABLE = frozenset(
    {
        "detail",
        "fingerprint",
        "model",
        "boot_id",
        "versions",
        "rss_bytes",
        "device",
        "started_at",
        "created_at",
        "age_seconds",
        "idle_seconds",
        "expires_in_seconds",
        "stats",
        "work",
    }
)


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


def send(port: int, request: dict[str, Any], fingerprint: str) -> Answer:
    """Sends a recorded request to a node, on a connection of its own, and returns the whole answer."""
    headers = {name: value.replace(FINGERPRINT, fingerprint) for name, value in request["headers"].items()}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(request["method"], request["path"], bytes.fromhex(request["body_hex"]) or None, headers)
        with connection.getresponse() as response:
            body = response.read()
            found = {name: response.headers[name] for name in ANSWER_HEADERS if name in response.headers}
            return Answer(response.status, found, body)
    finally:
        connection.close()


def described(headers: dict[str, str], body: bytes) -> dict[str, Any]:
    """A body as hex, and beside it what it says: JSON as it is, tensors by name, dtype and shape."""
    found: dict[str, Any] = {"body_hex": body.hex()}
    length = int.from_bytes(body[:8], "little")
    if body.startswith(b"{") and headers.get("Content-Type") == "application/json":
        found["json"] = json.loads(body)
    elif 8 < 8 + length <= len(body):
        found["tensors"] = {
            name: {"dtype": tensor["dtype"], "shape": tensor["shape"]}
            for name, tensor in json.loads(body[8 : 8 + length]).items()
        }
        if "sampling" in found["tensors"]:
            found["sampling"] = json.loads(load(body)["sampling"].numpy().tobytes())
    return found


def compare(recorded: dict[str, Any], answer: Answer) -> list[str]:
    """What of an answer is not as it was recorded; empty when it is the same exchange."""
    wrong = []
    if answer.status != recorded["status"]:
        wrong.append(f"status {answer.status}, not {recorded['status']}: {answer.body[:300]!r}")
    for name in ANSWER_HEADERS:
        was, now = recorded["headers"].get(name), answer.headers.get(name)
        if name == "Server-Timing" and was and now and TIMING.fullmatch(now):
            continue
        if was != now:
            wrong.append(f"{name}: {now!r}, not {was!r}")
    if wrong:
        return wrong
    if "json" in recorded:
        return _differences(recorded["json"], json.loads(answer.body), "body")
    was, now = (load(body) for body in (bytes.fromhex(recorded["body_hex"]), answer.body)) if answer.body else ({}, {})
    if {name: (t.dtype, t.shape) for name, t in was.items()} != {name: (t.dtype, t.shape) for name, t in now.items()}:
        return [f"tensors {now}, not {was}"]
    return [
        f"{name} differs by up to {float((was[name] - now[name]).abs().max()):g}"
        for name in was
        if not torch.allclose(was[name], now[name], rtol=0, atol=BAR)
    ]


def _differences(was: Any, now: Any, where: str, *, variable: bool = False) -> list[str]:
    """Where two JSON values differ. Of a variable one the fields and kinds count, its numbers and texts do not."""
    if _kind(was) != _kind(now):
        return [f"{where}: {now!r}, not {was!r}"]
    if isinstance(was, dict):
        if set(was) != set(now):
            return [f"{where}: the fields {sorted(set(was) ^ set(now))} are on one side only"]
        return [
            difference
            for name in was
            for difference in _differences(
                was[name], now[name], f"{where}.{name}", variable=variable or name in VARIABLE
            )
        ]
    if isinstance(was, list):
        if len(was) != len(now):
            return [f"{where}: {len(now)} items, not {len(was)}"]
        pairs = enumerate(zip(was, now, strict=True))
        return [d for i, (a, b) in pairs for d in _differences(a, b, f"{where}[{i}]", variable=variable)]
    return [] if variable or was == now else [f"{where}: {now!r}, not {was!r}"]


def _kind(value: Any) -> str:
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def recordings() -> list[Path]:
    return sorted(FOLDER.glob("*.json"))
