"""Choosing the next token on the tail: reproducible on every machine, whatever ran before or beside it.

u = first 53 bits of SHA-256(seed, choice index, position) / 2^53, where position is the number of tokens before the
sampled one; the token is found by inverse CDF in fp32 over the kept tokens in the order (probability descending, id
ascending). So a re-prefill, another node or another batch gives the same text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch

from nodes.logits import processed
from nodes.ranking import REACH, rank
from nodes.sampling_parameters import Sampling, TokenLogprobs


def uniform(seed: int, choice: int, position: int) -> float:
    """A number in [0, 1) that depends on nothing but its arguments."""
    digest = hashlib.sha256(f"{seed},{choice},{position}".encode()).digest()
    return (int.from_bytes(digest[:8], "big") >> 11) / 2**53


def choose(logits: torch.Tensor, sampling: Sampling, position: int, history: Sequence[int] = ()) -> int:
    """The next token id from logits [vocabulary] in fp32; `position` tokens stand before it.

    `history` are their ids, which penalties need; nothing else does.
    """
    changed = processed(logits, sampling, history)
    if sampling.temperature == 0:
        return int(changed.numpy().argmax())  # the first of equal ones
    u = uniform(sampling.seed, sampling.choice, position)
    near = rank(changed, sampling, REACH)
    return (near if near.holds(u) else rank(changed, sampling)).at(u)


def candidates(
    logits: torch.Tensor, sampling: Sampling, history: Sequence[int] = ()
) -> tuple[torch.Tensor, torch.Tensor]:
    """The ids that may be chosen and their probabilities, most probable first, equal ones by id; never none.

    The probabilities are those before top_p and min_p: they sum to 1 or less.
    """
    ranked = rank(processed(logits, sampling, history), sampling)
    return ranked.ids, ranked.probabilities


def logprobs_of(logits: torch.Tensor, token_id: int, top: int) -> TokenLogprobs:
    """The chosen token's and those of the `top` most probable ones, by logits [vocabulary] in fp32."""
    scores = torch.log_softmax(logits, dim=0)
    best, ids = torch.topk(scores, min(top, scores.numel()))
    return TokenLogprobs(float(scores[token_id]), tuple(zip(ids.tolist(), best.tolist(), strict=True)))
