"""What the head asks of the tail for each token, and what it is told beside the token. Plain values: no torch.

`nodes/sampling.py` chooses by them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from nodes.errors import BadRequest

#: More alternatives than a client may ask a head for.
MOST_LOGPROBS = 100
MOST_BIASES = 4096


@dataclass(frozen=True)
class Sampling:
    """The parameters of one step; the defaults change nothing. temperature 0 is greedy.

    prompt_len: how many tokens of the text are the prompt, which presence and frequency penalties leave out.
    logprobs: how many of the most probable tokens to report beside the chosen one; None reports nothing.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    choice: int = 0
    want_token: bool = True
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    prompt_len: int = 0
    logprobs: int | None = None

    @property
    def needs_history(self) -> bool:
        """Whether the ids of the whole text must be known."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1)

    @property
    def changes_logits(self) -> bool:
        return self.needs_history or bool(self.logit_bias)

    @classmethod
    def from_json(cls, value: dict[str, Any] | None) -> Sampling:
        """Reads the wire's JSON object; None is greedy. Raises BadRequest that names the field.

        An unknown field is refused: a parameter that is silently ignored gives a text that nobody asked for.
        """
        if value is None:
            return cls()
        unknown = set(value) - {one.name for one in fields(cls)}
        if unknown:
            raise BadRequest(f"sampling: {sorted(unknown)[0]!r:.80} is not supported by this node.")
        return cls(
            temperature=_number(value, "temperature", 0.0, 0.0, 100.0),
            top_p=_number(value, "top_p", 1.0, 0.0, 1.0),
            top_k=_whole(value, "top_k", 0, 0, 2**31),
            min_p=_number(value, "min_p", 0.0, 0.0, 1.0),
            seed=_whole(value, "seed", 0, -(2**63), 2**63 - 1),
            choice=_whole(value, "choice", 0, 0, 2**31),
            want_token=_flag(value, "want_token", default=True),
            presence_penalty=_number(value, "presence_penalty", 0.0, -100.0, 100.0),
            frequency_penalty=_number(value, "frequency_penalty", 0.0, -100.0, 100.0),
            repetition_penalty=_number(value, "repetition_penalty", 1.0, 1e-3, 1e3),
            logit_bias=_bias(value.get("logit_bias", [])),
            prompt_len=_whole(value, "prompt_len", 0, 0, 2**31),
            logprobs=None if value.get("logprobs") is None else _whole(value, "logprobs", 0, 0, MOST_LOGPROBS),
        )

    def as_json(self) -> dict[str, Any]:
        """What differs from the defaults: a token's parameters travel with every step."""
        found = {one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name) != one.default}
        if self.logit_bias:
            found["logit_bias"] = [list(pair) for pair in self.logit_bias]
        return found


@dataclass(frozen=True)
class TokenLogprobs:
    """Natural logarithms of probabilities, by the model's own logits: before penalties, bias and temperature.

    top: the most probable tokens with theirs, best first.
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {"logprob": self.logprob, "top": [[token_id, value] for token_id, value in self.top]}

    @classmethod
    def from_json(cls, value: object) -> TokenLogprobs:
        """Raises ValueError for anything else than what `as_json` gives."""
        if not isinstance(value, dict) or not isinstance(value.get("top"), list):
            raise ValueError("log probabilities must be an object with 'logprob' and 'top'.")
        top = []
        for pair in value["top"]:
            if not isinstance(pair, list) or len(pair) != 2 or not isinstance(pair[0], int):
                raise ValueError("'top' must hold pairs of a token and a number.")
            top.append((pair[0], _finite(pair[1])))
        return cls(_finite(value.get("logprob")), tuple(top))


def _bias(value: object) -> tuple[tuple[int, float], ...]:
    if not isinstance(value, list) or len(value) > MOST_BIASES:
        raise BadRequest(f"sampling: logit_bias must be a list of at most {MOST_BIASES} pairs.")
    pairs = []
    for pair in value:
        if (
            not isinstance(pair, list)
            or len(pair) != 2
            or isinstance(pair[0], bool)
            or not isinstance(pair[0], int)
            or isinstance(pair[1], bool)
            or not isinstance(pair[1], int | float)
            or not -1e4 <= pair[1] <= 1e4
        ):
            raise BadRequest("sampling: logit_bias must hold pairs of a token id and a number.")
        pairs.append((pair[0], float(pair[1])))
    return tuple(pairs)


def _finite(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError("a log probability must be a finite number.")
    return float(value)


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
