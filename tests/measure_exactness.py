"""What 16 bit changes: `python -m tests.measure_exactness` prints the numbers of docs/exactness.md.

Two node processes of the default model, once in float32 and once in bfloat16. Each question is answered greedily
three times: cached and undisturbed, without a cache, and with all sessions evicted after every 8th token. Beside the
texts it compares logits: the same tokens run one by one on a cache, and as one whole text.
"""

from __future__ import annotations

import dataclasses
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from generation.prompt import Prompter, stop_ids
from nodes.client import HttpNodeClient
from nodes.framing import DTYPES
from nodes.shard import Embedder, ModelShard
from tests import processes
from tests.meshes import LocalMesh, ranges
from tests.real import real_model

QUESTIONS = (
    "What is the capital of France?",
    "Tell me a short story about a lighthouse keeper and a storm.",
    "Explain in three sentences why the sky is blue.",
    "Write a list of five things to take on a hike.",
    "How does a bicycle stay upright?",
    "Describe the taste of an apple to someone who never ate one.",
)
NEW_TOKENS = 48
EVICT_EVERY = 8
#: Logits are compared at every so many positions: each costs a run over the whole text.
COMPARE_EVERY = 6


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def answer(mesh: LocalMesh, prompt: list[int], ends: frozenset[int], *, cache: bool, evict_every: int = 0) -> list[int]:
    loop = mesh.loop(prompt, NEW_TOKENS, job={"stop_ids": ends, "cache": cache})
    ids = []
    for token_id in loop.tokens():
        ids.append(token_id)
        if evict_every and len(ids) % evict_every == 0:
            for client in mesh.directory.clients:
                client.evict(everything=True, timeout=10)
    for client in mesh.directory.clients:
        client.release(loop.session_id, timeout=10)
    return ids


@torch.inference_mode()
def logits(shards: list[ModelShard], hidden: torch.Tensor, pieces: list[int]) -> torch.Tensor:
    """Logits after each piece of a text on a cache."""
    caches = [shard.new_cache() for shard in shards]
    rows, past = [], 0
    for piece in hidden.split(pieces, dim=1):
        state = piece
        for shard, cache in zip(shards[:-1], caches[:-1], strict=True):
            state = shard.forward(state, past, cache)
        rows.append(shards[-1].logits(state, past, caches[-1]))
        past += piece.shape[1]
    return torch.stack(rows)


def differ_at(a: list[int], b: list[int]) -> int | None:
    if a == b:
        return None
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def measure(dtype: str, folder: Path) -> None:
    model = real_model()
    halves = ranges(0, 15, 30)
    nodes = [
        processes.node(folder / f"{dtype}-{layers.start}", model.folder, str(layers), MESHNET_DTYPE=dtype)
        for layers in halves
    ]
    ends = frozenset(stop_ids(model.folder, None))
    prompter = Prompter.load(model.folder, context_length=2048, default_max_tokens=NEW_TOKENS)
    shards = [ModelShard.load(model.folder, layers, dtype=DTYPES[dtype]) for layers in halves]
    with processes.serving(*nodes):
        clients: list[Any] = [HttpNodeClient(node.url, processes.SECRET) for node in nodes]
        mesh = LocalMesh(model.folder, clients, fingerprint=model.fingerprint)
        mesh.embedder = Embedder.load(model.folder, dtype=DTYPES[dtype])
        mesh.settings = dataclasses.replace(mesh.settings, dtype=dtype)
        say(f"== {dtype}")
        worst, total, margins, flips, positions = 0.0, 0.0, [], 0, 0
        for question in QUESTIONS:
            prompt = prompter.ids([{"role": "user", "content": question}])
            cached = answer(mesh, prompt, ends, cache=True)
            stateless = answer(mesh, prompt, ends, cache=False)
            evicted = answer(mesh, prompt, ends, cache=True, evict_every=EVICT_EVERY)
            text = prompt + cached
            hidden = mesh.embedder.embed(text)
            one_by_one = logits(shards, hidden, [len(prompt), *[1] * len(cached)])[::COMPARE_EVERY]
            ends_at = range(len(prompt), len(text) + 1, COMPARE_EVERY)
            anew = torch.cat([logits(shards, hidden[:, :end], [end]) for end in ends_at])
            difference = (one_by_one - anew).abs()
            worst, total = max(worst, float(difference.max())), total + float(difference.mean(-1).sum())
            top = one_by_one.topk(2).values
            margins += (top[:, 0] - top[:, 1]).tolist()
            flips += int((one_by_one.argmax(-1) != anew.argmax(-1)).sum())
            positions += len(one_by_one)
            say(
                f"{len(cached):3d} tokens; stateless differs from token {differ_at(cached, stateless)}, "
                f"evicted every {EVICT_EVERY} from token {differ_at(cached, evicted)}: {question}"
            )
        small = torch.tensor(margins)
        say(
            f"logits, the same text on a cache and anew, {positions} positions: largest difference {worst:.2g}, mean "
            f"{total / positions:.2g}, {flips} other first choices; lead of the first choice over the second: smallest "
            f"{small.min():.2g}, below 0.25 at {int((small < 0.25).sum())} positions, median {small.median():.2g}"
        )
        for client in clients:
            client.close()


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for dtype in sys.argv[1:] or ("float32", "bfloat16"):
            measure(dtype, Path(folder))
