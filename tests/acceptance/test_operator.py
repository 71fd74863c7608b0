"""What an operator sees and does on the real model while a real answer streams."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.processes import call, wait_until
from tests.real import RealMesh, real_model_only

pytestmark = real_model_only

STORY: list[Any] = [{"role": "user", "content": "Tell me a long story about a dog who wants to cross the sea."}]
TOKENS = 100


@pytest.fixture(scope="module")
def client(real_mesh: RealMesh) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{real_mesh.data['head']}/v1", api_key=real_mesh.data["api_key"]) as made:
        yield made


def ask(client: openai.OpenAI, mesh: RealMesh, messages: list[Any], tokens: int, **options: Any) -> Any:
    return client.chat.completions.create(
        model=mesh.model, messages=messages, max_tokens=tokens, temperature=0, **options
    )


def sessions(mesh: RealMesh) -> list[list[dict[str, Any]]]:
    done = mesh.manage("kv_sessions", "--json")
    assert done.returncode == 0, done.stderr
    return [node["sessions"] for node in json.loads(done.stdout)["nodes"]]


def test_the_capital_of_france_is_paris_streamed_and_not(client: openai.OpenAI, real_mesh: RealMesh) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    assert "Paris" in ask(client, real_mesh, messages, 20).choices[0].message.content
    stream = ask(client, real_mesh, messages, 20, stream=True)
    assert "Paris" in "".join(chunk.choices[0].delta.content or "" for chunk in stream)


def test_an_eviction_in_the_middle_of_an_answer_is_seen_counted_and_changes_no_word(
    client: openai.OpenAI, real_mesh: RealMesh
) -> None:
    undisturbed = ask(client, real_mesh, STORY, TOKENS).choices[0].message.content
    text: list[str] = []
    begun = threading.Event()

    def read() -> None:
        for chunk in ask(client, real_mesh, STORY, TOKENS, stream=True):
            text.append(chunk.choices[0].delta.content or "")
            begun.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert begun.wait(60)

    first = sessions(real_mesh)
    assert [len(rows) for rows in first] == [1, 1]
    assert first[0][0]["id"] == first[1][0]["id"]
    second = sessions(real_mesh)
    assert all(later[0]["past_len"] > earlier[0]["past_len"] for earlier, later in zip(first, second, strict=True))

    done = real_mesh.manage("kv_evict", "--all", "--json")
    assert done.returncode == 0, done.stderr
    assert [node["evicted"] for node in json.loads(done.stdout)["nodes"]] == [[first[0][0]["id"]]] * 2

    reader.join(120)
    assert "".join(text) == undisturbed
    assert wait_until(lambda: sessions(real_mesh) == [[], []], 10)
    row = generation(real_mesh, first[0][0]["id"])
    assert (row["cache_misses"], row["prefills"], row["status"]) == (1, 2, "done")


def generation(mesh: RealMesh, session_id: str) -> dict[str, Any]:
    """The generation's row, read by a process of its own."""
    code = (
        "import json; from generation.models import Generation; "
        f"print(json.dumps(Generation.objects.filter(session_id='{session_id}').values().get(), default=str))"
    )
    done = mesh.manage("shell", "--no-imports", "-c", code)
    assert done.returncode == 0, done.stderr
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def test_the_admin_lets_the_printed_user_in(real_mesh: RealMesh) -> None:
    status, _, body = call(f"{real_mesh.data['head']}/admin/login/")
    assert status == 200
    assert b"meshnet" in body
