"""Choosing the next token on the tail: reproducible on every machine, whatever ran before or beside it.

u = first 53 bits of SHA-256(seed, choice index, position) / 2^53, where position is the number of tokens before the
sampled one; the token is found by inverse CDF in fp32 over the kept tokens in the order (probability descending, id
ascending). So a re-prefill, another node or another batch gives the same text.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import torch

from nodes.errors import BadRequest


@dataclass(frozen=True)
class Sampling:
    """The parameters of one step. temperature 0 is greedy; top_k 0 and top_p 1 keep every token."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    choice: int = 0
    want_token: bool = True

    @classmethod
    def from_json(cls, value: dict[str, Any] | None) -> Sampling:
        """Reads the wire's JSON object; None is greedy. Raises BadRequest that names the field.

        An unknown field is refused: a parameter that is silently ignored gives a text that nobody asked for.
        """
        if value is None:
            return cls()
        unknown = set(value) - {"temperature", "top_p", "top_k", "seed", "choice", "want_token", "prompt_len"}
        if unknown:
            raise BadRequest(f"sampling: {sorted(unknown)[0]!r:.80} is not supported by this node.")
        return cls(
            temperature=_number(value, "temperature", 0.0, 0.0, 100.0),
            top_p=_number(value, "top_p", 1.0, 0.0, 1.0),
            top_k=_whole(value, "top_k", 0, 0, 2**31),
            seed=_whole(value, "seed", 0, -(2**63), 2**63 - 1),
            choice=_whole(value, "choice", 0, 0, 2**31),
            want_token=_flag(value, "want_token", default=True),
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "seed": self.seed,
            "choice": self.choice,
            "want_token": self.want_token,
        }


def uniform(seed: int, choice: int, position: int) -> float:
    """A number in [0, 1) that depends on nothing but its arguments."""
    digest = hashlib.sha256(f"{seed},{choice},{position}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53


def choose(logits: torch.Tensor, sampling: Sampling, position: int) -> int:
    """The next token id from logits [vocabulary] in fp32; `position` tokens stand before it."""
    if sampling.temperature == 0:
        return int(logits.argmax())
    # A stable sort keeps equal probabilities in the order of their ids.
    ordered, ids = torch.sort(logits, descending=True, stable=True)
    keep = min(sampling.top_k or ordered.numel(), ordered.numel())
    # Relative to the best logit before dividing: a temperature of 1e-10 would overflow otherwise (case C07).
    scaled = (ordered[:keep] - ordered[0]) / max(sampling.temperature, 1e-10)
    probabilities = torch.softmax(scaled, dim=0)
    cumulative = torch.cumsum(probabilities, dim=0)
    if sampling.top_p < 1:
        # The smallest set of tokens whose probabilities reach top_p; always the best one.
        kept = max(1, int((cumulative - probabilities < sampling.top_p).sum()))
        cumulative = cumulative[:kept]
    target = torch.tensor(uniform(sampling.seed, sampling.choice, position), dtype=torch.float32) * cumulative[-1]
    index = int((cumulative <= target).sum())
    return int(ids[min(index, cumulative.numel() - 1)])


def _number(value: dict[str, Any], name: str, default: float, low: float, high: float) -> float:
    found = value.get(name, default)
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise BadRequest(f"sampling: {name} must be a number.")
    if not low <= found <= high:  # also false for NaN
        raise BadRequest(f"sampling: {name} must be between {low:g} and {high:g}.")
    return float(found)


def _whole(value: dict[str, Any], name: str, default: int, low: int, high: int) -> int:
    found = value.get(name, default)
    if isinstance(found, bool) or not isinstance(found, int) or not low <= found <= high:
        raise BadRequest(f"sampling: {name} must be a whole number between {low} and {high}.")
    return found


def _flag(value: dict[str, Any], name: str, *, default: bool) -> bool:
    found = value.get(name, default)
    if not isinstance(found, bool):
        raise BadRequest(f"sampling: {name} must be true or false.")
    return found
