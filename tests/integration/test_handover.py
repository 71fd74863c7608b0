"""Three real nodes that hand steps over to each other, over HTTP, and what can go wrong between them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
import torch

from generation.job import Progress
from nodes import framing
from nodes.client import HttpNodeClient, NodeClient, StepAnswer
from nodes.fleet import NodeFleet
from nodes.framing import Payload
from nodes.handover import HandOver
from nodes.kv_sessions import StoreLimits
from nodes.limits import HELD_PER_SLOT
from nodes.sampling import Sampling
from nodes.wire import StepHeaders, mint_session_id
from tests import processes
from tests.chaos.marks import further
from tests.meshes import LocalMesh
from tests.processes import Served, wait_until
from tests.toy_mesh import get_json
from tests.toys import reference_ids

PROMPT = torch.randint(1, 255, (15,), generator=torch.Generator().manual_seed(1)).tolist()
NEW = 20
LAYERS = ("0:1", "1:3", "3:4")


class Counting(HttpNodeClient):
    """Says how the head's decode steps went out."""

    ways: list[str]

    def forward(
        self, headers: StepHeaders, payload: Payload, *, timeout: float, patience: float | None = None
    ) -> StepAnswer:
        if headers.cache == "decode":
            self.ways.append("relayed" if payload.handover is None else "handed over")
        return super().forward(headers, payload, timeout=timeout, patience=patience)


class Mesh:
    """A loop in this process over nodes of real processes. `run` calls `meddle[n]` after the n-th new token."""

    def __init__(self, folder: Path, nodes: list[Served], **settings: Any) -> None:
        self.nodes = nodes
        self.ways: list[str] = []
        self.fleet = NodeFleet([self._client(node.url) for node in nodes], self._client)
        fingerprint = get_json(f"{nodes[0].url}/status")["fingerprint"]
        clients: Any = self.fleet
        self.mesh = LocalMesh(folder, clients, fingerprint=fingerprint, **{"handover": True, **settings})

    def _client(self, url: str) -> NodeClient:
        client = Counting(url, processes.SECRET, connect_timeout=1)
        client.ways = self.ways
        return client

    def run(self, meddle: dict[int, Any] | None = None, **job: Any) -> tuple[list[int], Progress]:
        loop = self.mesh.loop(PROMPT, NEW, job=job)
        ids = []
        for token_id in loop.tokens():
            ids.append(token_id)
            if meddle and len(ids) in meddle:
                meddle[len(ids)]()
        for url in loop.progress.touched:
            if url not in self.gone:
                self.fleet.client(url).release(loop.session_id, timeout=10)
        return ids, loop.progress

    gone: frozenset[str] = frozenset()

    def close(self) -> None:
        for client in self.fleet:
            client.tidy()


@pytest.fixture(scope="module")
def expected(toy_reference: Any) -> list[int]:
    ids = reference_ids(toy_reference("llama"), PROMPT, NEW)
    assert len(ids) == NEW and len(set(ids)) > 10, "a text that repeats itself would hide a shifted step"
    return ids


@contextmanager
def nodes_of(folder: Path, model: Path, *environs: dict[str, str], layers: tuple[str, ...] = LAYERS) -> Iterator[Any]:
    nodes = [
        processes.node(folder / f"node{place}", model, stretch, **(environs[place] if environs else {}))
        for place, stretch in enumerate(layers)
    ]
    with processes.serving(*nodes):
        yield nodes


@pytest.fixture(scope="module")
def nodes(toy_folder: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Served]]:
    with nodes_of(tmp_path_factory.mktemp("three"), toy_folder("llama")) as nodes:
        yield nodes


@pytest.fixture
def mesh(toy_folder: Any, nodes: list[Served]) -> Iterator[Mesh]:
    mesh = Mesh(toy_folder("llama"), nodes, step_patience=0.3)
    yield mesh
    mesh.close()


@pytest.fixture(scope="module")
def spare(toy_folder: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A node of all layers that no head knows yet."""
    with nodes_of(tmp_path_factory.mktemp("spare"), toy_folder("llama"), layers=("0:4",)) as (spare,):
        yield spare


def events(progress: Progress) -> list[tuple[str, str]]:
    return [(event, detail) for _, event, detail in progress.events if event not in ("prefill", "first token")]


def sessions(nodes: list[Served]) -> list[str]:
    return [row["id"] for node in nodes for row in get_json(f"{node.url}/sessions")["sessions"]]


def test_the_text_is_that_of_relayed_steps_greedy_and_drawn(mesh: Mesh, toy_folder: Any, expected: list[int]) -> None:
    assert mesh.run()[0] == expected
    assert mesh.ways == ["handed over"] * (NEW - 1)
    drawn = Sampling(temperature=1.0, seed=3, presence_penalty=0.5, prompt_len=len(PROMPT))
    handed, progress = mesh.run(sampling=drawn)
    assert set(mesh.ways) == {"handed over"}
    assert progress.prefills == 1
    relayed = Mesh(toy_folder("llama"), mesh.nodes, handover=False)
    assert relayed.run(sampling=drawn)[0] == handed
    assert set(relayed.ways) == {"relayed"}
    relayed.close()
    assert not sessions(mesh.nodes)


@pytest.mark.parametrize("place", range(3))
def test_an_eviction_at_any_node_costs_one_prefill(mesh: Mesh, expected: list[int], place: int) -> None:
    node = mesh.nodes[place]

    def evict() -> None:
        processes.call(f"{node.url}/sessions/evict", "POST", {"all": True}, processes.secret_header())

    ids, progress = mesh.run({6: evict})
    assert ids == expected
    assert (progress.cache_misses, progress.reprefills, progress.failovers) == (1, 1, 0)
    assert set(mesh.ways) == {"handed over"}
    assert not sessions(mesh.nodes)


@pytest.mark.parametrize("place", [further(0), 1, further(2)])
def test_a_node_that_hangs_is_left_and_no_other_is_blamed(
    mesh: Mesh, spare: Served, expected: list[int], place: int
) -> None:
    victim = mesh.nodes[place]
    mesh.gone = frozenset({victim.url})

    def hang() -> None:
        mesh.fleet.add(spare.url)
        os.killpg(victim.process.pid, signal.SIGSTOP)

    try:
        begun = time.monotonic()
        ids, progress = mesh.run({6: hang})
        # Patience, the question whether it lives, and room for a busy machine; a step may take 60 s.
        assert time.monotonic() - begun < 30
    finally:
        os.killpg(victim.process.pid, signal.SIGCONT)
    processes.call(f"{victim.url}/sessions/evict", "POST", {"all": True}, processes.secret_header())
    assert ids == expected
    assert [detail for event, detail in events(progress) if event == "failover"] == [f"node_timeout on {victim.url}"]


@pytest.mark.parametrize("place", [further(1), 2])
def test_a_node_that_is_killed_is_left_and_no_other_is_blamed(
    toy_folder: Any, tmp_path: Path, spare: Served, expected: list[int], place: int
) -> None:
    with nodes_of(tmp_path, toy_folder("llama")) as nodes:
        mesh = Mesh(toy_folder("llama"), nodes)
        mesh.gone = frozenset({nodes[place].url})

        def kill() -> None:
            mesh.fleet.add(spare.url)
            nodes[place].kill()

        ids, progress = mesh.run({6: kill})
        assert ids == expected
        failovers = [detail for event, detail in events(progress) if event == "failover"]
        assert failovers == [f"node_unreachable on {nodes[place].url}"]
        assert not sessions([node for node in [*nodes, spare] if node is not nodes[place]])
        mesh.close()


def test_nodes_that_may_not_speak_to_each_other_have_the_head_between_them(
    toy_folder: Any, tmp_path: Path, expected: list[int]
) -> None:
    elsewhere = {"MESHNET_NODE_NETWORKS": "10.0.0.0/8"}
    with nodes_of(tmp_path, toy_folder("llama"), {}, elsewhere, {}) as nodes:
        mesh = Mesh(toy_folder("llama"), nodes)
        ids, progress = mesh.run()
        assert ids == expected
        assert events(progress)[0] == ("relayed", f"no hand-over to {nodes[2].url}")
        assert (progress.failovers, progress.reprefills) == (0, 1)
        assert mesh.ways == ["handed over", *["relayed"] * (3 * (NEW - 2))]
        mesh.close()


def test_a_node_that_is_started_anew_is_a_cache_miss_like_any_other(
    toy_folder: Any, tmp_path: Path, expected: list[int]
) -> None:
    with nodes_of(tmp_path, toy_folder("llama")) as nodes:
        mesh = Mesh(toy_folder("llama"), nodes)

        def restart() -> None:
            nodes[1].kill()
            nodes[1].start().wait_ready()

        ids, progress = mesh.run({6: restart})
        assert ids == expected
        assert progress.failovers == 0
        assert "relayed" in mesh.ways, "its boot id is news to the head"
        mesh.close()


def forward(node: Served, handover: dict[str, Any], **headers: Any) -> tuple[int, dict[str, str], bytes]:
    sent = StepHeaders(mint_session_id(), **{"cache": "decode", "past_len": 3, "end_layer": 1, **headers})
    body = framing.encode(Payload(torch.zeros(1, 1, 64), handover=handover))
    return processes.call(
        f"{node.url}/forward",
        "POST",
        body,
        {**processes.secret_header(), "Content-Type": "application/octet-stream", **sent.to_http()},
    )


@pytest.mark.parametrize(
    ("changes", "headers", "status", "named"),
    [
        ({}, {}, 409, b"unknown_session"),
        ({"nonce": "x"}, {}, 400, b"nonce"),
        ({"next": []}, {}, 400, b"ends with layer 1, the model with 4"),
        ({}, {"cache": "prefill", "past_len": None}, 400, b"decode"),
        ({}, {"end_layer": None}, 400, b"layers"),
        ({"boot_id": "somebody-else"}, {}, 502, b"handover_failed"),
    ],
)
def test_what_is_wrong_with_a_way_is_said_before_anything_runs(
    nodes: list[Served], changes: dict[str, Any], headers: dict[str, Any], status: int, named: bytes
) -> None:
    rest = {"url": nodes[1].url, "boot_id": "any", "start": 1, "end": 4, "timeout": 5, "patience": 1}
    boot_id = get_json(f"{nodes[0].url}/status")["boot_id"]
    handover = {**HandOver("n" * 16, boot_id).as_json(), "next": [rest], **changes}
    got, _, body = forward(nodes[0], handover, **headers)
    assert (got, named in body) == (status, True), body


def test_a_result_is_for_the_mesh_only_and_waits_no_longer_than_asked(nodes: list[Served]) -> None:
    path = f"{nodes[2].url}/sessions/{'s' * 32}/steps/{'n' * 16}"
    assert processes.call(path)[0] == 401
    assert processes.call(f"{path}?wait=0.01", headers=processes.secret_header())[::2] == (200, b"{}")
    assert processes.call(f"{path}?wait=never", headers=processes.secret_header())[0] == 400
    assert processes.call(f"{path}?wait=nan", headers=processes.secret_header())[0] == 400
    assert processes.call(f"{path}x!", headers=processes.secret_header())[0] == 404


def test_heads_that_wait_for_nothing_leave_threads_for_everybody_else(nodes: list[Served]) -> None:
    """As many waits as there may be, twice: the others are refused, and the node answers."""
    answers: list[int] = []

    def wait(number: int) -> None:
        path = f"{nodes[2].url}/sessions/{number:032}/steps/{'n' * 16}?wait=1000"
        answers.append(processes.call(path, headers=processes.secret_header())[0])

    most = HELD_PER_SLOT * StoreLimits().max_sessions
    threads = [threading.Thread(target=wait, args=(number,)) for number in range(2 * most)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(answers) >= most, 20)
    assert set(answers) == {502}
    assert processes.call(f"{nodes[2].url}/livez")[0] == 200
    for number in range(2 * most):
        path = f"{nodes[2].url}/sessions/{number:032}"
        assert processes.call(path, "DELETE", headers=processes.secret_header())[0] == 200
    for thread in threads:
        thread.join(20)
    assert sorted(answers) == [200] * most + [502] * most, "a release wakes who waits"


def test_a_chat_over_a_real_head_is_handed_over_and_leaves_nothing_behind_when_its_client_goes(
    toy_folder: Any, tmp_path: Path, nodes: list[Served]
) -> None:
    model = toy_folder("llama")
    head = processes.head(tmp_path / "head", model, [node.url for node in nodes], MESHNET_HANDOVER="on")
    relaying = processes.head(tmp_path / "relaying", model, [node.url for node in nodes])
    texts = []
    for one in (head, relaying):
        key = processes.prepare_head(one)
        with processes.serving(one), openai.OpenAI(base_url=f"{one.url}/v1", api_key=key) as client:
            body: dict[str, Any] = {
                "model": model.name,
                "messages": [{"role": "user", "content": "hello"}],
                "temperature": 0,
            }
            texts.append(client.chat.completions.create(**body, max_tokens=40).choices[0].message.content)
            stream = client.chat.completions.create(**body, max_tokens=440, stream=True)
            for _ in range(5):
                next(stream)
            stream.close()
            wait_until(lambda: not sessions(nodes), 10, "a session was left behind")
    assert texts[0] == texts[1]
