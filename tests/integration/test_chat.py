"""The whole way of a chat request through real processes, with the real `openai` client."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
import torch

from generation.text import Detokenizer
from nodes.client import HttpNodeClient
from nodes.framing import Payload
from nodes.wire import StepHeaders
from tests import processes
from tests.processes import ROOT, wait_until
from tests.toy_mesh import ToyMesh
from tests.toys import byte_tokenizer, reference_ids

MESSAGES: list[Any] = [{"role": "user", "content": "Tell me about nodes."}]
LONG = 60


def expected_text(mesh: ToyMesh, reference: Any, new_tokens: int, messages: list[Any] = MESSAGES) -> str:
    tokenizer = byte_tokenizer()
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
    return str(tokenizer.decode(reference_ids(reference, prompt, new_tokens), skip_special_tokens=True))


def chat(mesh: ToyMesh, new_tokens: int, **options: Any) -> Any:
    return mesh.client.chat.completions.create(
        model=mesh.model.name, messages=MESSAGES, max_tokens=new_tokens, temperature=0, **options
    )


def joined(stream: Any) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def kv(mesh: ToyMesh, command: str, *arguments: str) -> tuple[int, Any, str]:
    """A management command in a shell of its own, which finds the nodes in its environment."""
    environ = {
        "PATH": "/usr/bin:/bin",
        "MESHNET_NODES": ",".join(node.url for node in mesh.nodes),
        "MESHNET_SECRET": processes.SECRET,
        "MESHNET_VAR_DIR": str(mesh.head.folder / "elsewhere"),
    }
    done = subprocess.run(
        [sys.executable, "manage.py", command, *arguments, "--json"],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


def test_streamed_and_unstreamed_texts_are_those_of_the_whole_model(toy_mesh: ToyMesh, toy_reference: Any) -> None:
    expected = expected_text(toy_mesh, toy_reference("llama"), 40)
    whole = chat(toy_mesh, 40)
    assert whole.choices[0].message.content == expected
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage.completion_tokens == 40
    assert joined(chat(toy_mesh, 40, stream=True)) == expected


def test_d01_every_ending_leaves_no_session_on_any_node(toy_mesh: ToyMesh) -> None:
    chat(toy_mesh, 5)
    list(chat(toy_mesh, 5, stream=True))
    with pytest.raises(openai.BadRequestError):
        chat(toy_mesh, 100_000)
    wait_until(toy_mesh.is_idle, 5, "sessions were left behind")


def test_d01_a_client_that_goes_away_ends_the_generation_and_frees_every_node(toy_mesh: ToyMesh) -> None:
    for streamed in (True, False):
        body = json.dumps(
            {
                "model": toy_mesh.model.name,
                "messages": MESSAGES,
                "max_tokens": 440,
                "temperature": 0,
                "stream": streamed,
            }
        ).encode()
        request = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {toy_mesh.api_key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode() + body
        with socket.create_connection(("127.0.0.1", toy_mesh.head.port), timeout=10) as sock:
            sock.sendall(request)
            wait_until(lambda: not toy_mesh.is_idle(), 10)
        wait_until(toy_mesh.is_idle, 5, "the nodes still hold the session of a client that went away")
        wait_until(lambda: toy_mesh.rows()[0]["status"] == "cancelled", 5)
        assert toy_mesh.rows()[0]["completion_tokens"] < 440


def test_an_eviction_in_mid_stream_changes_no_text_and_is_counted(toy_mesh: ToyMesh, toy_reference: Any) -> None:
    expected = expected_text(toy_mesh, toy_reference("llama"), LONG)
    before = [listing["stats"]["evictions"]["operator"] for listing in toy_mesh.sessions()]
    stream = chat(toy_mesh, LONG, stream=True)
    pieces = [next(stream).choices[0].delta.content or "" for _ in range(5)]
    with toy_mesh.proxy.holding():
        code, listed, _ = kv(toy_mesh, "kv_sessions")
        assert code == 0
        (session,) = {row["id"] for node in listed["nodes"] for row in node["sessions"]}
        code, done, _ = kv(toy_mesh, "kv_evict", "--all")
        assert code == 0
        assert [node["evicted"] for node in done["nodes"]] == [[session], [session]]
    text = "".join(pieces) + joined(stream)
    assert text == expected
    after = [listing["stats"]["evictions"]["operator"] for listing in toy_mesh.sessions()]
    assert [b - a for a, b in zip(before, after, strict=True)] == [1, 1]
    (row,) = [row for row in toy_mesh.rows() if row["session_id"] == session]
    assert (row["cache_misses"], row["prefills"], row["status"]) == (1, 2, "done")
    assert row["completion_tokens"] == LONG
    assert row["finish_reason"] == "length"


def test_f04_the_commands_act_on_the_running_nodes(toy_mesh: ToyMesh) -> None:
    session = "commands" * 3
    client = HttpNodeClient(toy_mesh.nodes[0].url, processes.SECRET)
    client.forward(StepHeaders(session, "prefill"), Payload(torch.zeros(1, 7, 64)), timeout=10)
    code, listed, _ = kv(toy_mesh, "kv_sessions")
    assert code == 0
    rows = {node["url"]: node["sessions"] for node in listed["nodes"]}
    assert [(row["id"], row["past_len"]) for row in rows[toy_mesh.nodes[0].url]] == [(session, 7)]
    assert rows[toy_mesh.nodes[1].url] == []
    assert kv(toy_mesh, "kv_evict", "--session", session)[0] == 0
    assert toy_mesh.is_idle()
    assert kv(toy_mesh, "kv_evict", "--session", session)[0] == 1, "an unknown session is no success"
    client.close()


def test_rows_say_how_it_went_and_nothing_of_what_was_said(toy_mesh: ToyMesh) -> None:
    marker = "zebra-marker"
    toy_mesh.client.chat.completions.create(
        model=toy_mesh.model.name, messages=[{"role": "user", "content": marker}], max_tokens=7, temperature=0
    )
    row = toy_mesh.rows()[0]
    assert (row["status"], row["finish_reason"], row["completion_tokens"], row["prefills"]) == ("done", "length", 7, 1)
    assert row["prompt_tokens"] > len(marker)
    assert [hop["node"] for hop in row["route"]] == toy_mesh.urls
    assert [(hop["start"], hop["end"]) for hop in row["route"]] == [(0, 2), (2, 4)]
    assert row["time_to_first_token"] > 0 and row["tokens_per_second"] > 0
    assert row["api_key_id"].startswith(toy_mesh.api_key.partition(".")[0])
    assert marker not in json.dumps(row, default=str)


def test_sampling_with_a_seed_repeats_and_without_one_does_not(toy_mesh: ToyMesh) -> None:
    def text(**options: Any) -> Any:
        return (
            toy_mesh.client.chat.completions.create(
                model=toy_mesh.model.name, messages=MESSAGES, max_tokens=30, **options
            )
            .choices[0]
            .message.content
        )

    assert text(seed=5, temperature=1.5) == text(seed=5, temperature=1.5)
    assert len({text(temperature=1.5) for _ in range(3)}) > 1


def test_many_chats_at_once_give_the_texts_that_each_gives_alone(toy_mesh: ToyMesh, toy_reference: Any) -> None:
    def one(index: int) -> str:
        messages = [{"role": "user", "content": f"Question {index}"}]
        answer = toy_mesh.client.chat.completions.create(
            model=toy_mesh.model.name,
            messages=messages,  # type: ignore[arg-type]
            max_tokens=20,
            temperature=0,
        )
        return answer.choices[0].message.content or ""

    with ThreadPoolExecutor(12) as pool:
        texts = list(pool.map(one, range(12)))
    for index, text in enumerate(texts):
        messages = [{"role": "user", "content": f"Question {index}"}]
        assert text == expected_text(toy_mesh, toy_reference("llama"), 20, messages)


def test_errors_reach_the_client_with_the_codes_it_knows(toy_mesh: ToyMesh) -> None:
    with pytest.raises(openai.AuthenticationError) as wrong:
        toy_mesh.client.with_options(api_key="nobody.knows").models.list()
    assert wrong.value.code == "invalid_api_key"
    with pytest.raises(openai.NotFoundError) as unknown:
        toy_mesh.client.chat.completions.create(model="gpt-5", messages=MESSAGES)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        chat(toy_mesh, 10_000)
    assert long.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError):
        toy_mesh.client.chat.completions.create(model=toy_mesh.model.name, messages=[])


def test_the_models_list_names_what_is_served(toy_mesh: ToyMesh) -> None:
    assert [model.id for model in toy_mesh.client.models.list()] == [toy_mesh.model.name]


def test_a_detokenizer_sees_what_the_head_sees(toy_mesh: ToyMesh, toy_reference: Any) -> None:
    tokenizer = byte_tokenizer()
    detokenizer = Detokenizer(lambda ids: str(tokenizer.decode(ids, skip_special_tokens=True)))
    ids = reference_ids(toy_reference("llama"), [5, 9, 7], 60)
    assert "".join([*map(detokenizer.push, ids), detokenizer.flush()]) == tokenizer.decode(ids)
