"""The fields that chats and completions share: how to sample, where to stop, how to send.

What a field may be is OpenAI's own documentation; `top_k`, `min_p` and `repetition_penalty` are as vLLM's server has
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from generation.openai import fields

if TYPE_CHECKING:
    from generation.runtime import HeadRuntime

#: Beyond this `top_k` keeps the whole vocabulary of any model.
MOST_TOP_K = 2**31 - 1
MOST_STOPS = 4
#: In characters. What could begin a stop string is held back, so a long one delays the text by as much.
LONGEST_STOP = 1000
#: OpenAI's own limit. Each entry travels with every step.
MOST_BIASES = 1024
#: Far beyond what gives sensible text, and within what nodes take.
LEAST_REPETITION_PENALTY, MOST_REPETITION_PENALTY = 0.001, 100.0


@dataclass(frozen=True)
class Served:
    """What reading a request needs to know of this server."""

    vocab_size: int
    most_choices: int
    takes_tools: bool = False


def served_by(runtime: HeadRuntime) -> Served:
    from django.conf import settings

    return Served(
        vocab_size=runtime.settings.vocab_size,
        most_choices=settings.MESHNET_MAX_CHOICES,
        takes_tools=runtime.prompter.supports_tools,
    )


def read_text_fields(body: Mapping[str, Any], served: Served) -> dict[str, Any]:
    """The keywords of a TextRequest, without its limit of tokens and its logprobs."""
    model = fields.text(body, "model")
    if not model:
        raise fields.missing("model")
    top_k = fields.integer(body, "top_k", least=-1, most=MOST_TOP_K)
    return {
        "model": model,
        "temperature": fields.number(body, "temperature", 1.0, least=0, most=2),
        "top_p": fields.number(body, "top_p", 1.0, least=0, most=1, above=True),
        "top_k": max(top_k or 0, 0),  # -1 is how vLLM's clients say "off"
        "min_p": fields.number(body, "min_p", 0.0, least=0, most=1),
        "seed": fields.integer(body, "seed"),
        "presence_penalty": fields.number(body, "presence_penalty", 0.0, least=-2, most=2),
        "frequency_penalty": fields.number(body, "frequency_penalty", 0.0, least=-2, most=2),
        "repetition_penalty": fields.number(
            body, "repetition_penalty", 1.0, least=LEAST_REPETITION_PENALTY, most=MOST_REPETITION_PENALTY
        ),
        "logit_bias": _read_logit_bias(body, served.vocab_size),
        "stop": _read_stop(body.get("stop")),
    }


def read_n(body: Mapping[str, Any], served: Served) -> int:
    n = fields.integer(body, "n", least=1)
    if n is not None and n > served.most_choices:
        raise fields.refuse(f"'n' must be at most {served.most_choices} on this server.", "n")
    return n or 1


def read_stream(body: Mapping[str, Any]) -> tuple[bool, bool]:
    """Whether to stream, and whether with a usage chunk."""
    stream = fields.boolean(body, "stream")
    options = fields.mapping(body, "stream_options")
    if options is None:
        return stream, False
    if not stream:
        raise fields.refuse("'stream_options' is only allowed when 'stream' is true.", "stream_options")
    return stream, fields.boolean(options, "include_usage", param="stream_options.include_usage")


def _read_stop(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise fields.wrong_type("stop", f"a string or a list of up to {MOST_STOPS} strings")
    if len(stops) > MOST_STOPS:
        raise fields.refuse(f"'stop' must hold at most {MOST_STOPS} strings.", "stop")
    if not all(1 <= len(stop) <= LONGEST_STOP for stop in stops):
        raise fields.refuse(f"Each string of 'stop' must have 1 to {LONGEST_STOP} characters.", "stop")
    return tuple(dict.fromkeys(stops))


def _read_logit_bias(body: Mapping[str, Any], vocab_size: int) -> tuple[tuple[int, float], ...]:
    biases = fields.mapping(body, "logit_bias") or {}
    if len(biases) > MOST_BIASES:
        raise fields.refuse(f"'logit_bias' must hold at most {MOST_BIASES} tokens.", "logit_bias")
    read: dict[int, float] = {}
    for key, bias in biases.items():
        # Ids are written in one way only, so that no token can have two biases.
        if not (key.isascii() and key.isdigit() and len(key) <= 10 and str(int(key)) == key):
            raise fields.refuse(f"'logit_bias' has the key {key!r:.40}, which is no token id.", "logit_bias")
        if int(key) >= vocab_size:
            raise fields.refuse(
                f"'logit_bias' names token {key}; this model's ids end at {vocab_size - 1}.", "logit_bias"
            )
        if not fields.is_number(bias):
            raise fields.wrong_type("logit_bias", f"an object whose values are numbers; that of {key} is none")
        if not -100 <= bias <= 100:
            raise fields.refuse(f"'logit_bias' of token {key} must be at least -100 and at most 100.", "logit_bias")
        read[int(key)] = float(bias)
    return tuple(read.items())
