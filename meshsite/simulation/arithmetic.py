"""What a mesh takes on paper, by the shape of its model: trips, bytes, slots, machines. Pure; nothing is measured."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from generation.directory import FRESH_SECONDS, LONGEST_FRESH_SECONDS, MOST_ASKED_A_SECOND


@dataclass(frozen=True)
class Shape:
    """A model as its config.json describes it; 16-bit weights, caches and hidden states."""

    name: str
    layers: int
    hidden: int
    kv_heads: int
    head_size: int
    vocabulary: int
    parameters: float
    stretches: int
    bytes_each: int = 2

    @property
    def state_bytes(self) -> int:
        """Hidden states of one token, one way."""
        return self.hidden * self.bytes_each

    @property
    def cache_bytes_per_token(self) -> int:
        """Keys and values of all layers."""
        return 2 * self.layers * self.kv_heads * self.head_size * self.bytes_each

    @property
    def weight_bytes(self) -> float:
        return self.parameters * self.bytes_each

    @property
    def embedding_bytes(self) -> int:
        """What each head worker holds."""
        return self.vocabulary * self.hidden * self.bytes_each

    def relayed_bytes(self, tokens: int = 1) -> int:
        """In and out of the head: to each stretch, and back from each but the last."""
        return (2 * self.stretches - 1) * self.state_bytes * tokens

    def handed_over_bytes(self) -> int:
        """Of one token, over all ways; one of them leaves the head."""
        return self.stretches * self.state_bytes


SHAPES = (
    Shape("SmolLM2-135M", 30, 576, 3, 64, 49_152, 0.135e9, 2),
    Shape("Qwen2.5-0.5B", 24, 896, 2, 64, 151_936, 0.494e9, 2),
    Shape("Qwen2.5-7B", 28, 3584, 4, 128, 152_064, 7.6e9, 2),
    Shape("Llama-3.1-70B", 80, 8192, 8, 128, 128_256, 70.6e9, 5),
    Shape("Llama-3.1-405B", 126, 16_384, 8, 128, 128_256, 405.9e9, 16),
)
#: One way, milliseconds.
LINKS = {"LAN": 0.2, "metro": 5.0, "continent": 30.0}
STRETCHES = (2, 5, 8, 16)


@dataclass(frozen=True)
class Assumed:
    """What the machines for so many users are counted with."""

    answers_per_user: float = 0.01  # under way at once
    tokens_per_second: float = 8.0  # of one answer
    context: int = 4096  # tokens that a slot is kept for
    node_bytes: float = 80e9
    usable: float = 0.85
    most_slots: int = 64  # steps of one token in one turn (nodes/batching.py)
    head_ms_per_request: float = 0.4  # of a core, measured (`polling`)
    beat_seconds: float = 5.0
    answers_per_worker: int = 56  # MESHNET_MAX_ANSWERS


def shapes() -> list[dict[str, Any]]:
    """A row for each model."""
    rows = []
    for shape in SHAPES:
        slots = slots_of(shape, Assumed())
        rows.append({
            "model": shape.name,
            "stretches": shape.stretches,
            "KB_token_way": round(shape.state_bytes / 1e3, 2),
            "KB_token_relayed": round(shape.relayed_bytes() / 1e3, 1),
            "KB_token_handed": round(shape.handed_over_bytes() / 1e3, 1),
            "MB_prompt_1000": round(shape.relayed_bytes(1000) / 1e6, 1),
            "KB_cache_token": round(shape.cache_bytes_per_token / 1e3, 1),
            "GB_cache_4096": round(shape.cache_bytes_per_token * 4096 / 1e9, 2),
            "GB_weights": round(shape.weight_bytes / 1e9, 1),
            "GB_head": round(shape.embedding_bytes / 1e9, 2),
            "slots_80GB": slots,
        })  # fmt: skip
    return rows


def trips() -> list[dict[str, Any]]:
    """Milliseconds of a token on the way alone: relayed 2S, handed over S + 1."""
    return [
        {"stretches": count}
        | {f"{name}_relayed": round(2 * count * ms, 1) for name, ms in LINKS.items()}
        | {f"{name}_handed": round((count + 1) * ms, 1) for name, ms in LINKS.items()}
        for count in STRETCHES
    ]


def slots_of(shape: Shape, assumed: Assumed) -> int:
    """Answers that a node of a stretch holds, by memory and by what one turn takes."""
    free = assumed.node_bytes * assumed.usable - shape.weight_bytes / shape.stretches
    each = shape.cache_bytes_per_token * assumed.context / shape.stretches
    return max(0, min(assumed.most_slots, int(free // each)))


def users(shape: Shape, assumed: Assumed | None = None) -> list[dict[str, Any]]:
    """A row for each number of users, with everything in one mesh: what one head, node and database would bear."""
    a = assumed or Assumed()
    rows = []
    for count in (1e3, 1e6, 1e9):
        answers = max(1, math.ceil(count * a.answers_per_user))
        replicas = max(2, math.ceil(answers / slots_of(shape, a)))
        nodes = replicas * shape.stretches
        tokens = answers * a.tokens_per_second
        relayed = tokens * shape.stretches * a.head_ms_per_request / 1e3
        handed = tokens * 2 * a.head_ms_per_request / 1e3
        fresh = min(max(FRESH_SECONDS, nodes / MOST_ASKED_A_SECOND), LONGEST_FRESH_SECONDS)
        workers = max(1, math.ceil(max(relayed, answers / a.answers_per_worker)))
        rows.append({
            "users": f"{count:.0e}".replace("e+0", "e"),
            "answers": answers,
            "nodes": nodes,
            "head_cores_relayed": round(relayed, 1),
            "head_cores_handed": round(handed, 1),
            "head_workers": workers,
            "beats_per_s": round(nodes / a.beat_seconds),
            "looks_per_s_all": round(workers * nodes / fresh),
            "looks_per_s_node": round(workers / fresh, 1),
            "cores_looking_per_worker": round(nodes / fresh * a.head_ms_per_request / 1e3, 2),
            "rows_per_s": round(2 * tokens / 329),
        })  # fmt: skip
    return rows


def arithmetic() -> list[dict[str, Any]]:
    """All of it, for the report."""
    seventy = next(shape for shape in SHAPES if "70B" in shape.name)
    return [{"by_model": shapes(), "milliseconds_on_the_way": trips(), "users_of_70B": users(seventy)}]
