"""Header names of `POST /forward` and their grammar. Knows nothing of tensors, HTTP libraries or Django.

The wire is described for implementers in `docs/protocol.md`.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from nodes.errors import BadRequest

SESSION = "X-Meshnet-Session"
CACHE = "X-Meshnet-Cache"
PAST_LEN = "X-Meshnet-Past-Len"
START_LAYER = "X-Meshnet-Start-Layer"
END_LAYER = "X-Meshnet-End-Layer"
MODEL = "X-Meshnet-Model"

TENSOR_TYPE = "application/octet-stream"
JSON_TYPE = "application/json"

CacheMode = Literal["prefill", "decode"]

_SESSION_RE = re.compile(r"[A-Za-z0-9_-]{22,64}")
_INTEGER_RE = re.compile(r"[0-9]{1,9}")
_MODEL_RE = re.compile(r"[\x21-\x7e]{1,256}")


def mint_session_id() -> str:
    """A new session id: 192 random bits, made by the head once per generation and never taken from a client.

    None begins with a dash, which a command line would take for an option.
    """
    while (session_id := secrets.token_urlsafe(24)).startswith("-"):
        pass
    return session_id


def is_session_id(value: str) -> bool:
    return _SESSION_RE.fullmatch(value) is not None


@dataclass(frozen=True)
class StepHeaders:
    """What one `/forward` request says besides its tensors. `cache` None is a stateless run."""

    session: str | None = None
    cache: CacheMode | None = None
    past_len: int | None = None
    start_layer: int | None = None
    end_layer: int | None = None
    model: str | None = None

    def to_http(self) -> dict[str, str]:
        pairs = (
            (SESSION, self.session),
            (CACHE, self.cache),
            (PAST_LEN, self.past_len),
            (START_LAYER, self.start_layer),
            (END_LAYER, self.end_layer),
            (MODEL, self.model),
        )
        return {name: str(value) for name, value in pairs if value is not None}

    @classmethod
    def from_http(cls, headers: Mapping[str, str]) -> StepHeaders:
        """Reads and checks the headers of a request. Raises BadRequest that names the header.

        Two headers of one name arrive joined by a comma (gunicorn), which no grammar here admits.
        """
        session = headers.get(SESSION)
        if session is not None and not is_session_id(session):
            raise BadRequest(f"{SESSION} must be one value of 22 to 64 letters, digits, '-' or '_'.")
        cache = headers.get(CACHE)
        if cache is not None and cache not in ("prefill", "decode"):
            raise BadRequest(f"{CACHE} must be 'prefill' or 'decode', once.")
        past_len = _integer(headers, PAST_LEN)
        if cache is not None and session is None:
            raise BadRequest(f"{CACHE} needs {SESSION}.")
        if cache == "decode" and past_len is None:
            raise BadRequest(f"A decode needs {PAST_LEN}.")
        if cache != "decode" and past_len is not None:
            raise BadRequest(f"{PAST_LEN} belongs to a decode only.")
        model = headers.get(MODEL)
        if model is not None and not _MODEL_RE.fullmatch(model):
            raise BadRequest(f"{MODEL} must be 1 to 256 printable ASCII characters.")
        return cls(
            session=session,
            cache=cache,  # type: ignore[arg-type]  # checked above, which mypy does not follow
            past_len=past_len,
            start_layer=_integer(headers, START_LAYER),
            end_layer=_integer(headers, END_LAYER),
            model=model,
        )


def _integer(headers: Mapping[str, str], name: str) -> int | None:
    value = headers.get(name)
    if value is None:
        return None
    if not _INTEGER_RE.fullmatch(value):
        raise BadRequest(f"{name} must be one whole number of 1 to 9 digits.")
    return int(value)


@dataclass(frozen=True)
class Timings:
    """Where a step's time went on one node, in milliseconds (`Server-Timing`)."""

    queue_ms: float = 0.0
    compute_ms: float = 0.0

    def to_http(self) -> str:
        return f"queue;dur={self.queue_ms:.3f}, compute;dur={self.compute_ms:.3f}"

    @classmethod
    def from_http(cls, value: str | None) -> Timings:
        """Reads `Server-Timing`; what is missing or malformed counts as zero, since nothing depends on it."""
        found = dict(re.findall(r"(queue|compute);dur=([0-9]+(?:\.[0-9]+)?)", value or ""))
        return cls(float(found.get("queue", 0)), float(found.get("compute", 0)))
