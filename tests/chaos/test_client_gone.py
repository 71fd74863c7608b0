"""A client that goes away, streaming or not: the nodes stop working for it and hold nothing (cases D01 and D02)."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from tests import processes
from tests.chaos.gate import Forward, Gate, Meddle
from tests.chaos.mesh import ChaosMesh, Replica
from tests.processes import wait_until

LONG = 400
RELEASE = "DELETE /sessions/<id>"


@contextmanager
def asking(mesh: ChaosMesh, stream: bool) -> Iterator[socket.socket]:
    """A client that has sent its request and reads nothing; gone at the end."""
    body = json.dumps(
        {
            "model": mesh.model.name,
            "messages": [{"role": "user", "content": "Hello"}],
            "max_tokens": LONG,
            "temperature": 0,
            "stream": stream,
        }
    )
    request = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {mesh.api_key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    )
    with socket.create_connection(("127.0.0.1", mesh.head.port), timeout=10) as sock:
        sock.sendall(request.encode())
        yield sock


@pytest.mark.parametrize("stream", [True, False])
def test_d01_a_client_that_goes_away_frees_all_three_nodes(mesh: ChaosMesh, stream: bool) -> None:
    begun = mesh.steps()
    with asking(mesh, stream):
        wait_until(lambda: mesh.steps() > begun + 15, 20)
    wait_until(mesh.is_idle, 2, "the nodes still hold the session of a client that went away")
    row = mesh.last_row()
    assert (row["status"], row["cancel_requested"]) == ("cancelled", 0)
    assert row["completion_tokens"] < LONG
    assert mesh.steps() - begun <= 3 * (row["completion_tokens"] + 2), "no step after it was noticed"


@pytest.mark.parametrize("stream", [True, False])
def test_d01_a_release_that_fails_at_one_node_reaches_the_others(mesh: ChaosMesh, stream: bool) -> None:
    def refuse(replica: Replica, gate: Gate, request: str) -> Meddle | None:
        return (lambda forward: None) if request == RELEASE else watches[replica.url](gate, request)

    stage = mesh.stages[1]
    watches = {replica.url: replica.gate.watch for replica in stage.replicas}
    try:
        for replica in stage.replicas:
            replica.gate.watch = partial(refuse, replica)
        begun = mesh.steps()
        with asking(mesh, stream):
            wait_until(lambda: mesh.steps() > begun + 15, 20)
        wait_until(
            lambda: (held := mesh.held()) and set(held) <= set(watches), 5, "the other nodes were not told to release"
        )
        assert mesh.last_row()["status"] == "cancelled"
    finally:
        for replica in stage.replicas:
            replica.gate.watch = watches[replica.url]
            processes.call(f"{replica.served.url}/sessions/evict", "POST", {"all": True}, processes.secret_header())


@pytest.mark.parametrize("stream", [True, False])
def test_d02_a_client_that_goes_away_in_a_silent_prefill_costs_no_decode(mesh: ChaosMesh, stream: bool) -> None:
    is_held, is_let_go = threading.Event(), threading.Event()

    def hold(replica: Replica, forward: Forward) -> bytes | None:
        answer = forward()
        is_held.set()
        assert is_let_go.wait(30)
        return answer

    mesh.stages[1].arm(1, hold)
    begun = mesh.steps()
    with asking(mesh, stream):
        assert is_held.wait(20)
    assert mesh.steps() - begun == 2
    is_let_go.set()
    wait_until(mesh.is_idle, 2, "the nodes still hold the session of a client that went away")
    assert mesh.last_row()["status"] == "cancelled"
    assert mesh.steps() - begun <= 6, "at most one decode step"
