"""More chats than slots: they wait in line instead of pushing each other out, and too many are told to come back."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch

from nodes.client import HttpNodeClient
from nodes.framing import Payload
from nodes.wire import StepHeaders, mint_session_id
from tests import processes
from tests.integration.test_chat import expected_text
from tests.processes import Served, wait_until
from tests.toy_mesh import ToyMesh, get_json

CHATS = 32
TOKENS = 16


def ask(mesh: ToyMesh, head: Served, question: str, tokens: int = TOKENS) -> tuple[int, dict[str, str], Any]:
    body = {
        "model": mesh.model.name,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": tokens,
        "temperature": 0,
    }
    status, headers, answer = processes.call(
        f"{head.url}/v1/chat/completions", "POST", body, {"Authorization": f"Bearer {mesh.api_key}"}, timeout=90
    )
    return status, headers, json.loads(answer)


def text_of(answer: Any) -> str:
    return str(answer["choices"][0]["message"]["content"])


def waiting(head: Served) -> int:
    """Generations of the head that wait for a slot or for their first step."""
    metrics = processes.call(f"{head.url}/metrics")[2].decode()
    found = re.search(r"^\S*num_requests_waiting\{[^}]*\} (\S+)$", metrics, re.MULTILINE)
    assert found is not None
    return int(float(found[1]))


def test_32_chats_on_8_slots_all_end_right_and_none_loses_its_cache(toy_mesh: ToyMesh, toy_reference: Any) -> None:
    before = [listing["stats"] for listing in toy_mesh.sessions()]
    limits = [listing["limits"]["max_sessions"] for listing in toy_mesh.sessions()]
    assert limits == [8, 8]
    with ThreadPoolExecutor(CHATS) as pool:
        answers = list(pool.map(lambda number: ask(toy_mesh, toy_mesh.head, f"Question {number}"), range(CHATS)))
    assert [status for status, _, _ in answers] == [200] * CHATS
    for number, (_, _, answer) in enumerate(answers):
        messages = [{"role": "user", "content": f"Question {number}"}]
        assert text_of(answer) == expected_text(toy_mesh, toy_reference("llama"), TOKENS, messages)
    wait_until(toy_mesh.is_idle, 5)
    after = [listing["stats"] for listing in toy_mesh.sessions()]
    for was, now in zip(before, after, strict=True):
        assert [now["evictions"][reason] - was["evictions"][reason] for reason in ("lru", "bytes", "replaced")] == [
            0
        ] * 3
        assert now["misses"] == was["misses"]
    rows = toy_mesh.rows()[:CHATS]
    assert {(row["status"], row["cache_misses"], row["failovers"]) for row in rows} == {("done", 0, 0)}


@contextmanager
def one_taken_slot(mesh: ToyMesh) -> Iterator[threading.Event]:
    """Each node has one slot, and somebody else's session is in it until the event is set."""
    wait_until(mesh.is_idle, 10)  # sessions of answers that have ended are released in the background
    session = mint_session_id()
    is_let_go = threading.Event()
    clients = [HttpNodeClient(node.url, processes.SECRET) for node in mesh.nodes]

    def hold() -> None:
        is_let_go.wait(60)
        clients[0].release(session, timeout=5)

    holding = threading.Thread(target=hold)
    holding.start()
    try:
        for client in clients:
            client.set_limits({"max_sessions": 1}, timeout=5)
        clients[0].forward(StepHeaders(session, "prefill"), Payload(torch.zeros(1, 7, 64)), timeout=10)
        yield is_let_go
    finally:
        is_let_go.set()
        holding.join()
        for client in clients:
            client.set_limits({"max_sessions": 8}, timeout=5)
            client.close()


def refusals(mesh: ToyMesh) -> int:
    """How often the first node said that it is full."""
    return int(get_json(f"{mesh.nodes[0].url}/status")["work"]["refusals"].get("busy", 0))


def test_who_came_first_is_served_first(toy_mesh: ToyMesh) -> None:
    served: list[int] = []
    before = refusals(toy_mesh)

    def is_in_line(count: int) -> bool:
        # The first one asks the node before it stands in line, and again when it does; those after it find a line.
        return waiting(toy_mesh.head) == count and refusals(toy_mesh) >= before + 2

    def chat(number: int) -> None:
        # Each hangs up when it has its first text, far from its end: the slot is free only after it was noted.
        with toy_mesh.client.chat.completions.create(
            model=toy_mesh.model.name,
            messages=[{"role": "user", "content": f"Question {number}"}],
            max_tokens=400,
            temperature=0,
            stream=True,
        ) as stream:
            next(chunk for chunk in stream if chunk.choices[0].delta.content)
            served.append(number)

    chats = [threading.Thread(target=chat, args=(number,)) for number in range(4)]
    with one_taken_slot(toy_mesh) as let_go:
        for count, thread in enumerate(chats, 1):
            thread.start()
            wait_until(partial(is_in_line, count), 20)
        assert served == []
        let_go.set()
        for thread in chats:
            thread.join(30)
    assert served == [0, 1, 2, 3]


@pytest.fixture(scope="module")
def small_head(toy_mesh: ToyMesh, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A second head on the same database: two answers at once, and a second in the line."""
    head = processes.head(
        tmp_path_factory.mktemp("small"),
        toy_mesh.model,
        toy_mesh.urls,
        MESHNET_MAX_ANSWERS="2",
        MESHNET_BUSY_WAIT_SECONDS="1",
        DATABASE_URL=f"sqlite:///{toy_mesh.head.folder / 'meshnet.sqlite3'}",
    )
    with processes.serving(head):
        yield head


def test_over_the_bound_of_a_head_is_503_to_be_tried_again(toy_mesh: ToyMesh, small_head: Served) -> None:
    with ThreadPoolExecutor(2) as pool:
        with toy_mesh.proxy.holding():
            under_way = [pool.submit(ask, toy_mesh, small_head, f"Question {number}") for number in range(2)]
            wait_until(lambda: waiting(small_head) == 2, 20)
            status, headers, answer = ask(toy_mesh, small_head, "One more")
        assert (status, answer["error"]["code"]) == (503, "busy")
        assert int(headers["Retry-After"]) >= 1
        assert "x-should-retry" not in headers
        assert [one.result(30)[0] for one in under_way] == [200, 200]
    wait_until(lambda: ask(toy_mesh, small_head, "One more")[0] == 200, 10)


def test_nobody_waits_for_ever_for_a_slot(toy_mesh: ToyMesh, small_head: Served) -> None:
    with one_taken_slot(toy_mesh):
        status, headers, answer = ask(toy_mesh, small_head, "Hello")
    assert (status, answer["error"]["code"]) == (503, "busy")
    assert int(headers["Retry-After"]) >= 1
    wait_until(toy_mesh.is_idle, 5)
