"""The tensors of one step, as head and nodes hold them; `nodes/framing.py` makes bytes of it. Loads no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Payload:
    """The tensors of one step.

    hidden: [1, T, hidden size] in the mesh's dtype. token_ids: [1, T] int64, only to the tail. sampling: the JSON
    object of `docs/protocol.md`, only to the tail; None is greedy. handover: the JSON object of `nodes/handover.py`, of
    a step that the nodes hand over to each other; token_ids and sampling then travel to the tail through all of them.
    """

    hidden: torch.Tensor
    token_ids: torch.Tensor | None = None
    sampling: dict[str, Any] | None = None
    handover: dict[str, Any] | None = None
