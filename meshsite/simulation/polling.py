"""What it costs a head worker to ask all nodes for their status: the real fetch and clients, over the loopback."""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from generation.directory import FRESH_SECONDS
from meshsite.simulation.planning import status_like
from nodes import live
from nodes.client import HttpNodeClient

#: Files that a process needs besides one connection to each node.
_OTHER_FILES = 200


def polling(sizes: Sequence[int], rounds: int = 3) -> list[dict[str, Any]]:
    """A row for each number of nodes; those for which this machine has too few open files are left out.

    One process answers for all nodes and takes the other core: the processor time is this one's alone.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with _answerer() as url:
            return [_row(url, count, rounds) for count in sizes if count + _OTHER_FILES < hard]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _row(url: str, count: int, rounds: int) -> dict[str, Any]:
    clients = [HttpNodeClient(url, "simulated") for _ in range(count)]
    try:
        live.fetch(clients, sessions=False, deadline=30.0)  # makes the connections
        walls, cores = [], []
        unheard = 0
        for _ in range(rounds):
            wall, core = time.perf_counter(), time.process_time()
            found = live.fetch(clients, sessions=False)
            walls.append(time.perf_counter() - wall)
            cores.append(time.process_time() - core)
            unheard += sum(one.status is None for one in found)
    finally:
        for client in clients:
            client.close()
    core_ms = statistics.median(cores) * 1e3
    return {
        "nodes": count,
        "wall_ms": round(statistics.median(walls) * 1e3, 1),
        "core_ms": round(core_ms, 1),
        "core_ms_per_node": round(core_ms / count, 3),
        "core_share": round(core_ms / 1e3 / FRESH_SECONDS, 3),
        "not_heard_in_time": unheard,
    }


@contextmanager
def _answerer() -> Iterator[str]:
    root = Path(__file__).resolve().parent.parent.parent
    child = subprocess.Popen(  # our own module
        [sys.executable, "-m", "meshsite.simulation.answerer"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=root,
    )
    assert child.stdin is not None and child.stdout is not None  # noqa: S101  # pipes were asked for
    try:
        child.stdin.write(json.dumps(status_like(0)).encode() + b"\n")
        child.stdin.flush()
        yield f"http://127.0.0.1:{int(child.stdout.readline())}"
    finally:
        child.stdin.close()
        child.wait(timeout=10)
        child.stdout.close()
