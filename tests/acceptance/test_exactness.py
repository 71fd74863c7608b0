"""Equality is promised in fp32: whatever is taken from the nodes, and however often, the ids stay the same.

What 16 bit can and cannot promise is measured in docs/exactness.md.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from generation.prompt import Prompter, stop_ids
from nodes.client import HttpNodeClient
from tests.marks import longer
from tests.meshes import LocalMesh
from tests.real import RealMesh, real_model, real_model_only

pytestmark = real_model_only

QUESTION = "Tell me a short story about a lighthouse keeper and a storm."
LONGEST = 64


@pytest.fixture
def mesh(real_mesh: RealMesh) -> Iterator[LocalMesh]:
    clients = [HttpNodeClient(url, real_mesh.data["mesh_secret"]) for url in real_mesh.data["nodes"]]
    model = real_model()
    yield LocalMesh(model.folder, list(clients), fingerprint=model.fingerprint)
    for client in clients:
        client.close()


@pytest.mark.parametrize("new_tokens", [24, longer(LONGEST)])
def test_an_operator_who_evicts_after_every_step_changes_no_token(mesh: LocalMesh, new_tokens: int) -> None:
    prompter = Prompter.load(real_model().folder, context_length=2048, default_max_tokens=LONGEST)
    prompt = prompter.ids([{"role": "user", "content": QUESTION}])
    job = {"stop_ids": frozenset(stop_ids(real_model().folder, None))}
    undisturbed = mesh.loop(prompt, new_tokens, job=job)
    expected = list(undisturbed.tokens())
    assert len(expected) == new_tokens and len(set(expected)) > new_tokens // 3
    assert (undisturbed.progress.prefills, undisturbed.progress.cache_misses) == (1, 0)
    for client in mesh.directory.clients:
        client.release(undisturbed.session_id, timeout=5)

    disturbed = mesh.loop(prompt, new_tokens, job=job)
    ids = []
    for token_id in disturbed.tokens():
        ids.append(token_id)
        for client in mesh.directory.clients:
            evicted = client.evict(everything=True, timeout=5)["evicted"]
            assert evicted == [disturbed.session_id], "every node held the answer's session again"
    assert ids == expected
    assert disturbed.progress.cached
    assert disturbed.progress.prefills == new_tokens
    assert disturbed.progress.cache_misses == new_tokens - 1
