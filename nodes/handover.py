"""What a step says that is handed over from node to node: the rest of its way, and what the nodes before did.

Plain values and their grammar. Knows nothing of tensors, HTTP or Django; `docs/protocol.md` describes them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nodes.errors import BadRequest
from nodes.json_fields import known_fields, text, whole
from nodes.layers import LayerRange
from nodes.networks import split_url
from nodes.sampling_parameters import TokenLogprobs
from nodes.wire import Timings

#: Nodes of one route; more than any model has use for.
MOST_HOPS = 64
#: The JSON of so many hops with the longest URLs fits.
LONGEST_BYTES = 32 * 1024
MOST_SECONDS = 24 * 3600.0
MOST_MILLISECONDS = 1e9

_NONCE = re.compile(r"[A-Za-z0-9_-]{16,64}")
_BOOT_ID = re.compile(r"[\x21-\x7e]{1,64}")


def is_nonce(value: str) -> bool:
    return _NONCE.fullmatch(value) is not None


@dataclass(frozen=True)
class NextHop:
    """A node that a step has still to pass. Seconds are those of the call to it, by whoever is before it."""

    url: str
    boot_id: str
    layers: LayerRange
    timeout: float
    patience: float

    def as_json(self) -> dict[str, Any]:
        return {
            "url": self.url,
            "boot_id": self.boot_id,
            "start": self.layers.start,
            "end": self.layers.end,
            "timeout": round(self.timeout, 3),
            "patience": round(self.patience, 3),
        }

    @classmethod
    def from_json(cls, value: Any) -> NextHop:
        body = _object(value, "Each of next")
        known_fields(body, frozenset({"url", "boot_id", "start", "end", "timeout", "patience"}))
        url = body.get("url")
        if not isinstance(url, str):
            raise BadRequest("url must be text.")
        split_url(url)
        start = whole(body, "start", 0, 10**9)
        return cls(
            url.rstrip("/"),
            text(body, "boot_id", _BOOT_ID),
            LayerRange(start, whole(body, "end", start + 1, 10**9)),
            _number(body, "timeout", 0.01, MOST_SECONDS),
            _number(body, "patience", 0.01, MOST_SECONDS),
        )


@dataclass(frozen=True)
class PassedHop:
    """What one node did with a step: tokens that it holds now (its acknowledgement), and where the time went."""

    held: int
    timings: Timings

    def as_json(self) -> dict[str, Any]:
        return {
            "held": self.held,
            "queue_ms": round(self.timings.queue_ms, 3),
            "compute_ms": round(self.timings.compute_ms, 3),
        }

    @classmethod
    def from_json(cls, value: Any) -> PassedHop:
        body = _object(value, "Each passed hop")
        known_fields(body, frozenset({"held", "queue_ms", "compute_ms"}))
        return cls(
            whole(body, "held", 0, 10**9),
            Timings(
                _number(body, "queue_ms", 0.0, MOST_MILLISECONDS), _number(body, "compute_ms", 0.0, MOST_MILLISECONDS)
            ),
        )


@dataclass(frozen=True)
class HandOver:
    """One step on its way. `boot_id` is that of the node to which this is sent: behind an address that the head
    knows may, seen from another machine, answer somebody else.
    """

    nonce: str
    boot_id: str
    rest: tuple[NextHop, ...] = ()
    passed: tuple[PassedHop, ...] = ()

    def after(self, passed: PassedHop) -> HandOver:
        """What the node behind this one is sent. Only while there is a rest."""
        return replace(self, boot_id=self.rest[0].boot_id, rest=self.rest[1:], passed=(*self.passed, passed))

    def ends_at(self, end: int) -> int:
        """The layer behind the last one of the way, for a node that runs up to `end`. Raises BadRequest for a gap.

        Layers only ever rise, so that no way goes round for ever.
        """
        for hop in self.rest:
            if hop.layers.start != end:
                raise BadRequest(f"The way has a gap: {hop.url} would begin with layer {hop.layers.start}, not {end}.")
            end = hop.layers.end
        return end

    def as_json(self) -> dict[str, Any]:
        return {
            "nonce": self.nonce,
            "boot_id": self.boot_id,
            "next": [hop.as_json() for hop in self.rest],
            "passed": [hop.as_json() for hop in self.passed],
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> HandOver:
        """Raises BadRequest that names what is wrong."""
        known_fields(body, frozenset({"nonce", "boot_id", "next", "passed"}))
        handover = cls(
            text(body, "nonce", _NONCE),
            text(body, "boot_id", _BOOT_ID),
            tuple(NextHop.from_json(item) for item in _list(body, "next")),
            tuple(PassedHop.from_json(item) for item in _list(body, "passed")),
        )
        urls = [hop.url for hop in handover.rest]
        if len(set(urls)) < len(urls):
            raise BadRequest("A node stands twice in next.")
        return handover


@dataclass(frozen=True)
class Letter:
    """What a handed-over step gave: the tail's answer, and what every node of the way did, in order."""

    token_id: int | None
    text: str
    hops: tuple[PassedHop, ...]
    logprobs: TokenLogprobs | None = None

    def as_json(self) -> dict[str, Any]:
        said: dict[str, Any] = {
            "text": self.text,
            "token_id": self.token_id,
            "hops": [hop.as_json() for hop in self.hops],
        }
        if self.logprobs is not None:
            said["logprobs"] = self.logprobs.as_json()
        return said

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Letter:
        """Raises BadRequest that names what is wrong."""
        token_id, advice, logprobs = body.get("token_id"), body.get("text"), body.get("logprobs")
        if token_id is not None:
            token_id = whole(body, "token_id", 0, 2**31)
        if logprobs is not None:
            try:
                logprobs = TokenLogprobs.from_json(logprobs)
            except ValueError as error:
                raise BadRequest(f"logprobs are none: {error}") from None
        return cls(
            token_id,
            advice if isinstance(advice, str) else "",
            tuple(PassedHop.from_json(item) for item in _list(body, "hops")),
            logprobs,
        )


def _object(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BadRequest(f"{name} must be an object.")
    return value


def _list(body: Mapping[str, Any], name: str) -> Sequence[Any]:
    value = body.get(name)
    if not isinstance(value, list) or len(value) > MOST_HOPS:
        raise BadRequest(f"{name} must be a list of at most {MOST_HOPS}.")
    return value


def _number(body: Mapping[str, Any], name: str, low: float, high: float) -> float:
    value = body.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadRequest(f"{name} must be a number.")
    if not low <= value <= high:
        raise BadRequest(f"{name} must be between {low:g} and {high:g}.")
    return float(value)
