"""Where one token's time and bytes go: on each node, on the way, and in the head."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from generation.text import Detokenizer
from meshsite.bench.measures import Say, text
from meshsite.bench.mesh import Hop, Mesh
from meshsite.bench.proxy import relays
from meshsite.bench.scale import Scale, rounds

#: The first steps of a run open connections and touch memory for the first time.
WARM_STEPS = 2


def one_token(mesh: Mesh, vocab_size: int, scale: Scale, say: Say) -> dict[str, Any]:
    """Milliseconds of every decode step of one session: by node, and of the head around them."""
    nodes: dict[str, dict[str, list[float]]] = {
        f"node {number}": {"compute_ms": [], "queue_ms": [], "network_ms": [], "overhead_ms": []}
        for number in range(1, len(mesh.urls) + 1)
    }
    head: dict[str, list[float]] = {"token_ms": [], "embedding_ms": [], "loop_ms": []}
    for number in rounds(scale):
        with mesh.answering(text(scale.prompt, vocab_size), scale.tokens + WARM_STEPS + 1) as stream:
            for step in range(scale.tokens + WARM_STEPS + 1):
                mesh.ledger.hops.clear()
                mesh.embedder.calls_ms.clear()
                begun = time.perf_counter()
                next(stream)
                total_ms = (time.perf_counter() - begun) * 1e3
                if step > WARM_STEPS:  # the first is the prompt
                    _note(mesh.ledger.hops, mesh.urls, nodes)
                    embedding_ms = sum(mesh.embedder.calls_ms)
                    on_nodes_ms = sum(hop.total_ms for hop in mesh.ledger.hops)
                    head["token_ms"].append(total_ms)
                    head["embedding_ms"].append(embedding_ms)
                    head["loop_ms"].append(total_ms - embedding_ms - on_nodes_ms)
        say(f"one token, round {number + 1}: {statistics.median(head['token_ms'][-scale.tokens :]):.1f} ms")
    return {"nodes": nodes, "head": head}


def _note(hops: list[Hop], urls: list[str], nodes: dict[str, dict[str, list[float]]]) -> None:
    for hop in hops:
        samples = nodes[f"node {urls.index(hop.url) + 1}"]
        samples["compute_ms"].append(hop.timings.compute_ms)
        samples["queue_ms"].append(hop.timings.queue_ms)
        samples["network_ms"].append(hop.network_ms)
        samples["overhead_ms"].append(hop.overhead_ms)


def pieces(mesh: Mesh, vocab_size: int, lengths: Sequence[int]) -> dict[str, int]:
    """In how many pieces the head sends a prompt of each length."""
    found = {}
    for length in lengths:
        mesh.ledger.hops.clear()
        mesh.generate(text(length, vocab_size), 1)
        found[str(length)] = sum(hop.url == mesh.urls[0] for hop in mesh.ledger.hops)
    return found


def text_ms(decode: Callable[[list[int]], str], vocab_size: int, tokens: int) -> list[float]:
    """Milliseconds that the head takes to turn each token into text; not part of the loop, but of an answer."""
    detokenizer = Detokenizer(decode)
    found = []
    for token_id in text(tokens, vocab_size):
        begun = time.perf_counter()
        detokenizer.push(token_id)
        found.append((time.perf_counter() - begun) * 1e3)
    return found


def bytes_on_the_wire(mesh: Mesh, vocab_size: int, value_bytes: int, scale: Scale, say: Say) -> dict[str, Any]:
    """Bytes of each decode step on each hop, request and answer together with their headers, counted by relays."""
    payload = 2 * mesh.embedder.embedder.shape.hidden_size * value_bytes
    with relays(mesh.urls) as hops:
        counted = mesh.beside("counted", [hop.url for hop in hops])
        found: dict[str, list[int]] = {f"node {number}": [] for number in range(1, len(hops) + 1)}
        with counted.answering(text(scale.prompt, vocab_size), scale.tokens + 1) as stream:
            next(stream)
            for _ in range(scale.tokens):
                before = [hop.count for hop in hops]
                next(stream)
                for samples, hop, earlier in zip(found.values(), hops, before, strict=True):
                    samples.append(hop.count - earlier)
        counted.close()
    say("bytes of a step: " + ", ".join(f"{name} {max(sizes)}" for name, sizes in found.items()))
    return {"payload_bytes": payload, "hops": found}
