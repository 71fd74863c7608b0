"""What a node of the tests announces."""

from __future__ import annotations

from typing import Any

from nodes.announcement import Announcement

BOOT = "boot-one-0123456789"
URL = "http://127.0.0.1:8001"


def body(**changes: Any) -> dict[str, Any]:
    """The JSON of an announcement; a change to None leaves the field out."""
    whole = {
        "url": URL,
        "boot_id": BOOT,
        "model": "toy",
        "fingerprint": "sha256:toy",
        "layers": "0:15",
        "n_layers": 30,
        "dtype": "float32",
        "context_length": 512,
        "state": "ready",
        "capacity": {"max_sessions": 8, "max_bytes": 2 * 1024**3},
        "load": {"sessions": 1, "bytes": 1024},
        "version": "0.1.0",
        **changes,
    }
    return {name: value for name, value in whole.items() if value is not None}


def announcement(**changes: Any) -> Announcement:
    return Announcement.from_json(body(**changes))


def status(of: Announcement, **changes: Any) -> dict[str, Any]:
    """What the node of the announcement answers to whoever asks for its status."""
    return {
        "boot_id": of.boot_id,
        "fingerprint": of.fingerprint,
        "dtype": of.dtype,
        "start_layer": of.layers.start,
        "end_layer": of.layers.end,
        **changes,
    }
