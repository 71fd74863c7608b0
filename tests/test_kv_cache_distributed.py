"""The golden property, on the real model: a sharded, cached generation is the same generation.

Two node processes hold half of the layers each. The loop runs over HTTP against them, once cached and once stateless,
and both must give the very token ids that `generate()` of the whole model gives in this process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from generation.prompt import Prompter, stop_ids
from nodes.client import HttpNodeClient
from tests.marks import longer
from tests.meshes import LocalMesh
from tests.real import RealMesh, real_model, real_model_only

pytestmark = real_model_only

QUESTIONS = (
    "What is the capital of France?",
    "Explain in three sentences why the sky is blue. 用中文也可以。",
    longer("Tell me a short story about a lighthouse keeper and a storm."),
)
NEW_TOKENS = 48


@pytest.fixture(scope="module")
def prompter() -> Prompter:
    return Prompter.load(real_model().folder, context_length=2048, default_max_tokens=NEW_TOKENS)


@pytest.fixture(scope="module")
def whole_model() -> Any:
    return AutoModelForCausalLM.from_pretrained(real_model().folder, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def mesh(real_mesh: RealMesh) -> Iterator[LocalMesh]:
    clients = [HttpNodeClient(url, real_mesh.data["mesh_secret"]) for url in real_mesh.data["nodes"]]
    model = real_model()
    yield LocalMesh(model.folder, list(clients), fingerprint=model.fingerprint, piece_tokens=16)
    for client in clients:
        client.close()


@pytest.mark.parametrize("question", QUESTIONS)
def test_cached_and_stateless_distributed_generation_equal_the_whole_model(
    question: str, mesh: LocalMesh, prompter: Prompter, whole_model: Any
) -> None:
    prompt = prompter.ids([{"role": "user", "content": question}])
    ends = stop_ids(real_model().folder, None)
    output = whole_model.generate(torch.tensor([prompt]), max_new_tokens=NEW_TOKENS, do_sample=False)
    expected = output[0, len(prompt) :].tolist()
    if expected[-1] in ends:
        expected.pop()
    assert len(set(expected)) > 5

    cached = mesh.loop(prompt, NEW_TOKENS, job={"stop_ids": frozenset(ends)})
    assert list(cached.tokens()) == expected
    assert cached.progress.cached
    assert cached.progress.prefills == 1
    assert cached.progress.route is not None
    assert len(cached.progress.route.hops) == 2

    stateless = mesh.loop(prompt, NEW_TOKENS, job={"stop_ids": frozenset(ends), "cache": False})
    assert list(stateless.tokens()) == expected
    assert stateless.progress.prefills == len(expected) + (1 if stateless.progress.finish_reason == "stop" else 0)
    for client in mesh.directory.clients:
        client.release(cached.session_id, timeout=5)
