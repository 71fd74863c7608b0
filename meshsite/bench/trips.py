"""What the way of a step costs when nodes are far apart: relayed by the head, or handed over from node to node."""

from __future__ import annotations

import dataclasses
import statistics
import time

from generation.job import LoopSettings
from meshsite.bench.measures import Say, text
from meshsite.bench.mesh import Mesh
from meshsite.bench.proxy import relays
from meshsite.bench.scale import Scale, rounds

#: The option of the loop that lets nodes hand over to each other.
OPTION = "handover"
MISSING = "This version has no direct hand-over between nodes."
RELAYED, HANDED_OVER = "relayed by the head", "handed over"


def can_hand_over() -> bool:
    return OPTION in {field.name for field in dataclasses.fields(LoopSettings)}


def far_apart(mesh: Mesh, vocab_size: int, scale: Scale, say: Say) -> dict[str, list[float]]:
    """Milliseconds per token without the nodes' own computing, each way in turn; each round's median.

    `delay_ms` of round trip lie between any two parties: everyone reaches a node through the relay before it.
    """
    with relays(mesh.urls, scale.delay_ms) as hops:
        urls = [hop.url for hop in hops]
        ways = {RELAYED: mesh.beside(RELAYED, urls, **({OPTION: False} if can_hand_over() else {}))}
        if can_hand_over():
            ways[HANDED_OVER] = mesh.beside(HANDED_OVER, urls, **{OPTION: True})
        found: dict[str, list[float]] = {name: [] for name in ways}
        for number in rounds(scale):
            for name, way in ways.items():
                found[name].append(statistics.median(_trips(way, vocab_size, scale)))
            say(
                f"{scale.delay_ms:g} ms apart, round {number + 1}: "
                + ", ".join(f"{name} {values[-1]:.1f}" for name, values in found.items())
                + " ms a token without computing"
            )
        for way in ways.values():
            way.close()
    return found


def _trips(mesh: Mesh, vocab_size: int, scale: Scale) -> list[float]:
    found = []
    with mesh.answering(text(scale.prompt, vocab_size), scale.tokens + 1) as stream:
        next(stream)
        for _ in range(scale.tokens):
            mesh.ledger.hops.clear()
            begun = time.perf_counter()
            next(stream)
            total_ms = (time.perf_counter() - begun) * 1e3
            found.append(total_ms - sum(hop.timings.compute_ms for hop in mesh.ledger.hops))
    return found
