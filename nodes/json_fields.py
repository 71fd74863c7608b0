"""Fields of the JSON that nodes send to heads: each is read with its type and range, or BadRequest names it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from nodes.errors import BadRequest
from nodes.layers import LayerRange
from nodes.networks import normal_url

#: Names and fingerprints: no control characters, and nothing that a database cannot hold.
LABEL = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]{1,255}")


def known_fields(body: Mapping[str, Any], known: frozenset[str]) -> None:
    """Raises BadRequest that names a field that is not known here."""
    unknown = sorted(set(body) - known)
    if unknown:
        raise BadRequest(f"Unknown field {unknown[0]!r:.80}.")


def place(body: Mapping[str, Any]) -> tuple[str, str, int]:
    """`url`, or else `scheme` (http when it is missing) and `port`, of which the head makes one."""
    if "url" in body:
        if "scheme" in body or "port" in body:
            raise BadRequest("Name url, or scheme and port, not both.")
        if not isinstance(body["url"], str):
            raise BadRequest("url must be text.")
        return normal_url(body["url"]), "http", 0
    scheme = one_of(body, "scheme", ("http", "https")) if "scheme" in body else "http"
    return "", scheme, whole(body, "port", 1, 65535)


def layers_within(body: Mapping[str, Any], n_layers: int) -> LayerRange:
    value = body.get("layers")
    try:
        layers = LayerRange.parse(value if isinstance(value, str) else "")
    except ValueError:
        raise BadRequest("layers must be text such as 0:15.") from None
    if layers.end > n_layers:
        raise BadRequest(f"layers {layers} do not lie within the model's {n_layers} layers.")
    return layers


def whole(body: Mapping[str, Any], name: str, low: int, high: int) -> int:
    value = body.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise BadRequest(f"{name} must be a whole number from {low} to {high}.")
    return value


def text(body: Mapping[str, Any], name: str, grammar: re.Pattern[str]) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not grammar.fullmatch(value):
        raise BadRequest(f"{name} is missing or not what it can be.")
    return value


def one_of(body: Mapping[str, Any], name: str, choices: tuple[str, ...]) -> str:
    value = body.get(name)
    if value not in choices or not isinstance(value, str):
        raise BadRequest(f"{name} must be {', '.join(choices[:-1])} or {choices[-1]}.")
    return value


def nested(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = body.get(name)
    if not isinstance(value, dict):
        raise BadRequest(f"{name} must be an object.")
    return value
