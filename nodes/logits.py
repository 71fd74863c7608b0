"""What changes a model's logits before a token is chosen, in the order in which transformers applies it.

1. logit_bias is added (`SequenceBiasLogitsProcessor`).
2. repetition_penalty: the logits of all tokens of the text, the prompt's too, are divided by it where they are
   positive and multiplied where they are negative (`RepetitionPenaltyLogitsProcessor`, arXiv:1909.05858).
3. frequency_penalty is subtracted once for each time that a token was generated, presence_penalty once if it was at
   all (the OpenAI API's definition; transformers has none). The prompt does not count.

Temperature and what is cut off come after that (`nodes/sampling.py`). Runs on the engine's thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from nodes.sampling_parameters import Sampling


def processed(logits: torch.Tensor, sampling: Sampling, history: Sequence[int]) -> torch.Tensor:
    """Logits [vocabulary] as the parameters want them; the given tensor stays as it is.

    `history` are the ids of the whole text; its first `sampling.prompt_len` are the prompt. Biased ids must be in the
    vocabulary.
    """
    if not sampling.changes_logits:
        return logits
    changed = logits.clone()
    if sampling.logit_bias:
        ids, values = zip(*sampling.logit_bias, strict=True)
        changed.index_add_(0, torch.tensor(ids), torch.tensor(values, dtype=changed.dtype))
    if sampling.repetition_penalty != 1:
        seen = torch.tensor(history).unique()
        scores = changed[seen]
        penalty = sampling.repetition_penalty
        changed[seen] = torch.where(scores < 0, scores * penalty, scores / penalty)
    if sampling.frequency_penalty or sampling.presence_penalty:
        made = torch.tensor(history[sampling.prompt_len :], dtype=torch.int64)
        counts = torch.bincount(made, minlength=changed.numel())[: changed.numel()].to(changed.dtype)
        changed -= sampling.frequency_penalty * counts + sampling.presence_penalty * (counts > 0)
    return changed
