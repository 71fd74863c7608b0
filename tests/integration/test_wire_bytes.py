"""What a step costs on the wire, counted by a proxy between the head's loop and real node processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch

from nodes.client import HttpNodeClient
from nodes.model_files import find_model
from tests.meshes import LocalMesh
from tests.processes import SECRET
from tests.proxies import Proxy, proxy_to
from tests.toy_mesh import ToyMesh
from tests.toys import reference_ids

PROMPT = torch.randint(1, 255, (40,), generator=torch.Generator().manual_seed(2)).tolist()
NEW = 120


class Wire:
    """A loop in this process that reaches the mesh's nodes through proxies."""

    def __init__(self, mesh: ToyMesh, proxies: list[Proxy]) -> None:
        self.proxies = proxies
        self.clients = [HttpNodeClient(proxy.url, SECRET) for proxy in proxies]
        fingerprint = find_model(str(mesh.model), mesh.head.folder).fingerprint
        self.mesh = LocalMesh(mesh.model, list(self.clients), fingerprint=fingerprint, step_timeout=10)

    def run(self, **options: Any) -> tuple[list[int], Any]:
        loop = self.mesh.loop(PROMPT, NEW, **options)
        try:
            return list(loop.tokens()), loop.progress
        finally:
            for client in self.clients:
                client.release(loop.session_id, timeout=5)


@pytest.fixture
def wire(toy_mesh: ToyMesh) -> Iterator[Wire]:
    with ExitStack() as stack:
        made = Wire(toy_mesh, [stack.enter_context(proxy_to(node.port)) for node in toy_mesh.nodes])
        yield made
        for client in made.clients:
            client.close()


def body_of(message: bytes) -> bytes:
    return message.partition(b"\r\n\r\n")[2]


@pytest.fixture(scope="module")
def expected(toy_reference: Any) -> list[int]:
    return reference_ids(toy_reference("llama"), PROMPT, NEW)


def test_bytes_of_a_decode_step_do_not_grow_with_the_text(wire: Wire, expected: list[int]) -> None:
    ids, _ = wire.run()
    assert ids == expected
    for proxy in wire.proxies:
        prefill, *decodes = proxy.steps()
        assert prefill.size > len(PROMPT) * 64 * 4
        assert len(decodes) == NEW - 1
        # 64 values of 4 bytes each way, and at most 1,500 bytes of everything else
        assert max(step.size for step in decodes) <= 2 * 64 * 4 + 1500
        # Bodies are all alike; heads differ by the digits of a length and of the two times in Server-Timing.
        assert len({len(body_of(step.request)) for step in decodes}) == 1
        heads = [step.size - len(body_of(step.request)) - len(body_of(step.answer)) for step in decodes]
        assert max(heads) - min(heads) <= 16
    inner, tail = ({len(body_of(step.answer)) for step in proxy.steps()[1:]} for proxy in wire.proxies)
    assert len(inner) == 1
    assert max(tail) - min(tail) <= 16, "a token's id and text"


def test_bytes_of_a_stateless_step_do_grow(wire: Wire, expected: list[int]) -> None:
    """So that the test above would notice if every step were a whole text."""
    ids, _ = wire.run(job={"cache": False})
    assert ids == expected
    sizes = [exchange.size for exchange in wire.proxies[0].steps()]
    assert sizes[-1] - sizes[0] >= (NEW - 1) * 64 * 4


@pytest.mark.parametrize("node", [0, 1])
@pytest.mark.parametrize("step", [1, 2, 30, NEW])
def test_d04_an_answer_that_is_lost_after_the_step_ran_does_not_shift_the_text(
    wire: Wire, expected: list[int], toy_mesh: ToyMesh, node: int, step: int
) -> None:
    held: list[int] = []

    def lose(answer: bytes) -> None:
        held.extend(row["past_len"] for row in toy_mesh.sessions()[node]["sessions"])

    wire.proxies[node].spoil[step] = lose
    ids, progress = wire.run()
    assert ids == expected
    assert (progress.prefills, progress.failovers) == (2, 1)
    assert held == [len(PROMPT) + step - 1], "the step was carried out, once"


@pytest.mark.parametrize("node", [0, 1])
def test_half_an_answer_does_not_shift_the_text(wire: Wire, expected: list[int], node: int) -> None:
    wire.proxies[node].spoil[20] = lambda answer: answer[: len(answer) - 7]
    ids, progress = wire.run()
    assert ids == expected
    assert progress.failovers == 1


def test_connections_are_kept(wire: Wire) -> None:
    wire.run()
    assert all(client._pool.num_connections <= 3 for client in wire.clients)


def test_no_secret_stands_in_any_url(wire: Wire) -> None:
    wire.run()
    assert all(SECRET not in exchange.path for proxy in wire.proxies for exchange in proxy.exchanges)
