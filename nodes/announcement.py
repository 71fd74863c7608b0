"""What a node says of itself to a head: the body of `POST /mesh/announce`. Plain data, the same on both sides."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nodes.coverage import MOST_LAYERS
from nodes.json_fields import (
    LABEL,
    known_fields,
    layers_within,
    nested,
    one_of,
    place,
    text,
    whole,
)
from nodes.layers import LayerRange
from nodes.networks import url_at

STATES = ("ready", "draining", "leaving")
#: As in nodes/framing.py, which loads torch.
DTYPES = ("float32", "bfloat16", "float16")

_BOOT_ID = re.compile(r"[A-Za-z0-9_-]{8,64}")
_VERSION = re.compile(r"[A-Za-z0-9.+_-]{1,32}")
_FIELDS = frozenset({
    "url", "scheme", "port", "boot_id", "model", "fingerprint", "layers", "n_layers", "dtype", "context_length",
    "state", "capacity", "load", "version",
})  # fmt: skip


@dataclass(frozen=True)
class Announcement:
    """`url` is empty when the node does not know it: the head then takes the address that it sees, and `port`.

    `max_sessions` and `max_bytes` are what the node may hold, `sessions` and `bytes` what it holds.
    """

    boot_id: str
    model: str
    fingerprint: str
    layers: LayerRange
    n_layers: int
    dtype: str
    context_length: int
    state: str
    max_sessions: int
    max_bytes: int
    sessions: int
    bytes: int
    version: str
    url: str = ""
    scheme: str = "http"
    port: int = 0

    def url_from(self, address: str) -> str:
        """Where the node can be reached, when it was heard from `address`. Raises BadRequest when that is none."""
        return self.url or url_at(self.scheme, address, self.port)

    def as_json(self) -> dict[str, Any]:
        where = {"url": self.url} if self.url else {"scheme": self.scheme, "port": self.port}
        return {
            **where,
            "boot_id": self.boot_id,
            "model": self.model,
            "fingerprint": self.fingerprint,
            "layers": str(self.layers),
            "n_layers": self.n_layers,
            "dtype": self.dtype,
            "context_length": self.context_length,
            "state": self.state,
            "capacity": {"max_sessions": self.max_sessions, "max_bytes": self.max_bytes},
            "load": {"sessions": self.sessions, "bytes": self.bytes},
            "version": self.version,
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Announcement:
        """Raises BadRequest that names the field."""
        known_fields(body, _FIELDS)
        url, scheme, port = place(body)
        n_layers = whole(body, "n_layers", 1, MOST_LAYERS)
        capacity, load = nested(body, "capacity"), nested(body, "load")
        return cls(
            url=url,
            scheme=scheme,
            port=port,
            boot_id=text(body, "boot_id", _BOOT_ID),
            model=text(body, "model", LABEL),
            fingerprint=text(body, "fingerprint", LABEL),
            layers=layers_within(body, n_layers),
            n_layers=n_layers,
            dtype=one_of(body, "dtype", DTYPES),
            context_length=whole(body, "context_length", 1, 1_000_000_000),
            state=one_of(body, "state", STATES),
            max_sessions=whole(capacity, "max_sessions", 0, 1_000_000),
            max_bytes=whole(capacity, "max_bytes", 0, 10**18),
            sessions=whole(load, "sessions", 0, 1_000_000),
            bytes=whole(load, "bytes", 0, 10**18),
            version=text(body, "version", _VERSION),
        )
