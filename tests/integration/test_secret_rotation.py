"""The mesh secret is changed as docs/security.md says, and chats are answered all along."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai

from tests import processes
from tests.integration.test_chat import MESSAGES
from tests.marks import long
from tests.processes import Served, call
from tests.toys import byte_tokenizer, reference_ids

OLD, NEW = processes.SECRET, "the-secret-that-comes-next"
#: MESHNET_SECRET and MESHNET_SECRET_ALSO of each step.
STEPS = [(OLD, NEW), (NEW, OLD), (NEW, "")]


@long
def test_the_secret_changes_in_three_steps_and_every_chat_is_answered(
    toy_folder: Any, toy_reference: Any, tmp_path: Path
) -> None:
    model = toy_folder("llama")
    nodes = [processes.node(tmp_path / name, model, "0:4") for name in ("one", "two")]
    head = processes.head(tmp_path / "head", model, [node.url for node in nodes])
    tokenizer = byte_tokenizer()
    prompt = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=True)["input_ids"]
    expected = tokenizer.decode(reference_ids(toy_reference("llama"), prompt, 10), skip_special_tokens=True)
    with processes.serving(*nodes):
        client = openai.OpenAI(base_url=f"{head.url}/v1", api_key=processes.prepare_head(head), max_retries=0)

        def chat() -> str | None:
            answer = client.chat.completions.create(model=model.name, messages=MESSAGES, max_tokens=10, temperature=0)
            return answer.choices[0].message.content

        with processes.serving(head), client:
            assert chat() == expected
            assert accepted(nodes[0]) == {OLD}
            for step, (secret, also) in enumerate(STEPS):
                for served in (*nodes, head):
                    with restarting(served, secret, also):
                        if served is not head:
                            assert chat() == expected, f"step {step + 1} while {served.url} restarts"
                    assert chat() == expected, f"step {step + 1} after {served.url}"
                assert [accepted(node) for node in nodes] == [{secret, also} - {""}] * 2


@contextmanager
def restarting(served: Served, secret: str, also: str) -> Iterator[None]:
    # Nodes without a good-bye: the others go on all the same, and nobody waits for open connections.
    served.stop() if served.config == "gunicorn_head.py" else served.kill()
    yield
    served.environ.update(MESHNET_SECRET=secret, MESHNET_SECRET_ALSO=also)
    served.start().wait_ready()


def accepted(node: Served) -> set[str]:
    return {
        secret
        for secret in (OLD, NEW)
        if call(f"{node.url}/status", headers={"Authorization": f"Bearer {secret}"})[0] == 200
    }
