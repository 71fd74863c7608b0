"""What one more answer takes in a head worker: the loop's objects, and the thread that runs it. Real, not simulated."""

from __future__ import annotations

import resource
import threading
import tracemalloc
from pathlib import Path
from typing import Any

from generation.head import TokenLoop
from generation.job import Job
from meshsite.simulation.mesh import MeshSize, SimulatedMesh

PROMPT_TOKENS = 296
ANSWER_TOKENS = 329


def memory(answers: int = 200, seed: int = 1) -> dict[str, Any]:
    """Bytes for each answer of PROMPT_TOKENS and ANSWER_TOKENS, and for each thread that waits."""
    mesh = SimulatedMesh(MeshSize(nodes=5, head_workers=1), seed)
    head = mesh.heads[0]
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    loops = []
    for number in range(answers):
        prompt = [1000 + place for place in range(PROMPT_TOKENS)]
        job = Job(f"simulated-session-{number:08}", prompt, ANSWER_TOKENS, frozenset())
        loops.append((TokenLoop(head.directory, head.embedder, head.settings, job), [*prompt, *range(ANSWER_TOKENS)]))
    loop_bytes = (tracemalloc.get_traced_memory()[0] - before) / answers
    tracemalloc.stop()
    return {"loop_bytes_per_answer": round(loop_bytes), "thread_bytes": round(_thread_bytes(answers))}


def _thread_bytes(count: int) -> float:
    """Resident, of a thread that waits; its stack is touched a little only."""
    leave = threading.Event()
    before = _resident()
    threads = [threading.Thread(target=leave.wait, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    taken = _resident() - before
    leave.set()
    for thread in threads:
        thread.join()
    return max(0.0, taken / count)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
