"""Kept connections that the node closes at the very moment of their reuse (case D05)."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import openai

from meshsite.gunicorn_conf import KEEPALIVE_SECONDS
from nodes.connections import POOL_IDLE_SECONDS
from tests import processes
from tests.chaos.marks import ALL_CASES
from tests.integration.test_chat import MESSAGES, expected_text
from tests.toy_mesh import ToyMesh

TOKENS = 6
ROUNDS = 50 if ALL_CASES else 3


def test_d05_the_head_drops_an_idle_connection_before_the_node_does() -> None:
    assert POOL_IDLE_SECONDS < KEEPALIVE_SECONDS - 15


def test_d05_a_connection_that_dies_while_it_is_reused_costs_no_request_and_no_token(
    toy_mesh: ToyMesh, toy_reference: Any, tmp_path: Path
) -> None:
    """A node that keeps connections for a second only, and chats with pauses of about a second."""
    expected = expected_text(toy_mesh, toy_reference("llama"), TOKENS)
    tail = processes.node(tmp_path / "tail", toy_mesh.model, "2:4", GUNICORN_CMD_ARGS="--keep-alive 1")
    head = processes.head(tmp_path / "head", toy_mesh.model, [toy_mesh.nodes[0].url, tail.url])
    key = processes.prepare_head(head)
    pauses = random.Random(5)  # noqa: S311
    with processes.serving(tail, head), openai.OpenAI(base_url=f"{head.url}/v1", api_key=key, max_retries=0) as client:
        for _ in range(ROUNDS):
            answer = client.chat.completions.create(
                model=toy_mesh.model.name,
                messages=MESSAGES,
                max_tokens=TOKENS,
                temperature=0,
            )
            assert answer.choices[0].message.content == expected
            assert answer.usage is not None and answer.usage.completion_tokens == TOKENS
            time.sleep(pauses.uniform(0.95, 1.05))  # the pause is what is tested
        rows = processes.in_django(
            head, "from generation.models import Generation\nresult = list(Generation.objects.values('status'))\n"
        )
    assert rows == [{"status": "done"}] * ROUNDS
