"""Tokens in the order of their probability, as far down as needed, and the one at a given place among them.

To sort a whole vocabulary takes milliseconds: 4 for 49,152 tokens, for each session of a packed step. Nearly always the
token is found among the few that are near the best one, so those are ranked alone first (0.3 ms). What they cannot
decide, all tokens do; both give the same token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from nodes.sampling_parameters import Sampling

#: Tokens whose probability is below that of the best one times e^-REACH are ranked only when needed.
REACH = 10.0
#: So far below 1 that the product with a sum in fp32 is below that sum.
BELOW_ONE = torch.tensor(1 - 2**-22, dtype=torch.float32)


@dataclass(frozen=True)
class Ranking:
    """Ids, most probable first, equal ones by id, and their probabilities, [n] each.

    is_whole: no token that may be chosen is missing behind them. total: what all that may be chosen sum to.
    """

    ids: torch.Tensor
    probabilities: torch.Tensor
    is_whole: bool
    total: torch.Tensor

    def holds(self, u: float) -> bool:
        """Whether the token of u is ranked here."""
        return self.is_whole or self._place(u) < self.ids.numel()

    def at(self, u: float) -> int:
        """The id where the sum of probabilities passes u of the total; the last one here when it never does."""
        return int(self.ids[min(self._place(u), self.ids.numel() - 1)])

    def _place(self, u: float) -> int:
        cumulative = torch.cumsum(self.probabilities, dim=0)
        target = torch.tensor(u, dtype=torch.float32)
        place = int((cumulative <= target * self.total).sum())
        if place == cumulative.numel() and self.is_whole:
            # In fp32 all of them sum to a little less than 1: once in millions u lies behind that, and the last token,
            # the least probable of all, is not meant.
            place = int((cumulative <= min(target, BELOW_ONE) * cumulative[-1]).sum())
        return place


def rank(logits: torch.Tensor, sampling: Sampling, reach: float = math.inf) -> Ranking:
    """Ranks logits [vocabulary] in fp32 by temperature above 0, top_k, top_p and min_p.

    With `reach` only tokens whose probability is at least e^-reach of the best one's are looked at, unless those cannot
    tell where top_k, top_p or min_p cut. The probabilities are those before top_p and min_p cut: they may sum to less
    than 1.
    """
    # Relative to the best logit before dividing: a temperature of 1e-10 would overflow otherwise (case C07).
    scaled = (logits - logits.max()) / max(sampling.temperature, 1e-10)
    # A stable sort keeps equal ones in the order of their ids.
    if reach == math.inf:
        ids = torch.sort(logits, descending=True, stable=True).indices
    else:
        near = (scaled >= -reach).nonzero().flatten()
        ids = near[torch.sort(logits[near], descending=True, stable=True).indices]
    count = ids.numel()
    is_whole = count == logits.numel()
    if 0 < sampling.top_k < logits.numel():
        if count < sampling.top_k:
            return rank(logits, sampling)
        count, is_whole = sampling.top_k, True
        ids = ids[:count]
        probabilities = torch.softmax(scaled[ids], dim=0)
    else:
        probabilities = torch.softmax(scaled, dim=0)[ids]
    kept = count
    if sampling.top_p < 1:
        # The smallest set of tokens whose probabilities reach top_p; always the best one.
        before = torch.cumsum(probabilities, dim=0) - probabilities
        kept = int((before < sampling.top_p).sum())
        is_whole = is_whole or kept < count
    if sampling.min_p > 0:
        # Relative to the best one, so that what top_p left out does not matter.
        above = int((probabilities >= sampling.min_p * probabilities[0]).sum())
        is_whole = is_whole or above < count
        kept = min(kept, above)
    if not is_whole and (sampling.top_p < 1 or sampling.min_p > 0):
        return rank(logits, sampling)
    is_cut, kept = kept < count, max(1, kept)
    # What nothing was cut off sums to one; to add it up would need all of it.
    total = torch.cumsum(probabilities[:kept], dim=0)[-1] if is_cut else torch.tensor(1.0)
    return Ranking(ids[:kept], probabilities[:kept], is_whole, total)
