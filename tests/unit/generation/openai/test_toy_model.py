"""The API over a real sharded toy model in this process: requests in, JSON out. No rows are written: SQLite in memory
does not let several threads write at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.apps import apps
from django.test import Client

from generation.directory import NodeDirectory
from generation.job import Job, LoopSettings, Progress
from generation.models import APIKey
from generation.prompt import Prompter
from generation.record import Record
from generation.runtime import HeadRuntime
from nodes.runtime import NodeRuntime
from nodes.shard import Embedder
from tests.meshes import FINGERPRINT, local_clients, ranges, running_nodes
from tests.processes import wait_until
from tests.toys import EOS, VOCAB, byte_tokenizer, reference_ids

from .conftest import assert_is_error
from .test_streaming import events

Ask = Callable[..., Any]
MESSAGES = [{"role": "user", "content": "hello"}]
LONG = [{"role": "user", "content": "x" * 600}]
PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def nodes(toy_folder: Any) -> Iterator[list[NodeRuntime]]:
    with running_nodes(toy_folder("llama"), ranges(0, 2, 4)) as running:
        yield running


@pytest.fixture
def toy_head(toy_folder: Any, nodes: list[NodeRuntime], monkeypatch: pytest.MonkeyPatch) -> Iterator[HeadRuntime]:
    head = HeadRuntime(
        "toy",
        Prompter(byte_tokenizer(), context_length=512, stop_ids=[EOS], default_max_tokens=30),
        Embedder.load(toy_folder("llama")),
        LoopSettings(FINGERPRINT, "float32", 4, VOCAB, 512),
        NodeDirectory(local_clients(nodes)),
    )
    monkeypatch.setattr(apps.get_app_config("generation"), "runtime", head)
    yield head
    for answer in head.running():
        answer.join(10)


@dataclass
class Generations:
    """What would be written of each."""

    begun: list[Job] = field(default_factory=list)
    ended: list[Progress] = field(default_factory=list)


@pytest.fixture
def generations(monkeypatch: pytest.MonkeyPatch) -> Generations:
    found = Generations()

    class NoRow(Record):
        def end(self, progress: Progress, *args: Any, **options: Any) -> None:
            found.ended.append(progress)

    def begin(runtime: HeadRuntime, job: Job, **options: Any) -> Record:
        found.begun.append(job)
        return NoRow(None)

    monkeypatch.setattr(Record, "begin", begin)
    return found


@pytest.fixture
def ask(toy_head: HeadRuntime, generations: Generations, db: None) -> Ask:
    """ask("chat/completions", **fields): the response; the model's name and messages or prompt need not be said."""
    _, key = APIKey.objects.create_key(name="test")
    client = Client()

    def ask(path: str, **fields: Any) -> Any:
        subject = {"messages": MESSAGES} if path.startswith("chat") else {"prompt": PROMPT}
        body = json.dumps({"model": "toy", "max_tokens": 12, **subject, **fields})
        headers = {"Authorization": f"Bearer {key}"}
        for answer in toy_head.running():
            answer.join(10)  # a database in memory knows no waiting: what the one before still writes comes first
        return client.post(f"/v1/{path}", data=body, content_type="application/json", headers=headers)

    return ask


def streamed_texts(content: bytes, n: int) -> list[str]:
    texts = [""] * n
    for chunk in events(content)[:-1]:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice.get("text") or choice.get("delta", {}).get("content") or ""
    return texts


def test_a_completion_goes_on_with_the_prompt_as_it_stands(ask: Ask, toy_reference: Any) -> None:
    ids = byte_tokenizer()(PROMPT)["input_ids"]
    expected = byte_tokenizer().decode(reference_ids(toy_reference("llama"), ids, 12), skip_special_tokens=True)
    for prompt in (PROMPT, ids):
        body = ask("completions", prompt=prompt, temperature=0).json()
        assert body["choices"][0]["text"] == expected
        assert body["usage"]["prompt_tokens"] == len(ids)
    assert ask("completions", temperature=0, echo=True).json()["choices"][0]["text"] == PROMPT + expected


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_choices_differ_and_the_same_seed_gives_the_same_again_streamed_or_not(
    ask: Ask, generations: Generations, path: str
) -> None:
    body = ask(path, n=3, seed=5).json()
    texts = [choice.get("text") or choice["message"]["content"] for choice in body["choices"]]
    assert len(set(texts)) == 3
    wait_until(lambda: len(generations.ended) == 3, 10, "one generation per choice")
    assert body["usage"]["completion_tokens"] == sum(progress.completion_tokens for progress in generations.ended)
    assert {len(job.prompt_ids) for job in generations.begun} == {body["usage"]["prompt_tokens"]}
    assert [(job.sampling.seed, job.sampling.choice) for job in generations.begun] == [(5, 0), (5, 1), (5, 2)]
    assert streamed_texts(ask(path, n=3, seed=5, stream=True).getvalue(), 3) == texts


def test_without_a_seed_the_text_is_another_each_time(ask: Ask) -> None:
    texts = {ask("completions", temperature=2, max_tokens=30).json()["choices"][0]["text"] for _ in range(3)}
    assert len(texts) == 3


def test_every_token_has_its_log_probability_streamed_or_not(ask: Ask) -> None:
    options = {"logprobs": True, "top_logprobs": 3, "seed": 5}
    body = ask("chat/completions", **options).json()
    entries = body["choices"][0]["logprobs"]["content"]
    assert len(entries) == body["usage"]["completion_tokens"]
    for entry in entries:
        assert entry["logprob"] <= 0
        assert len(entry["top_logprobs"]) == 3
        assert [one["logprob"] for one in entry["top_logprobs"]] == sorted(
            (one["logprob"] for one in entry["top_logprobs"]), reverse=True
        )
    chunks = events(ask("chat/completions", **options, stream=True).getvalue())[:-1]
    streamed = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [entry for logprobs in streamed if logprobs for entry in logprobs["content"]] == entries


def test_the_lists_of_a_completion_are_of_one_length(ask: Ask) -> None:
    choice = ask("completions", logprobs=2, seed=5).json()["choices"][0]
    lists = choice["logprobs"]
    assert {len(values) for values in lists.values()} == {12}
    assert all(0 <= offset <= len(choice["text"]) for offset in lists["text_offset"])
    assert lists["text_offset"] == sorted(lists["text_offset"])


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
def test_b05_a_stop_string_ends_the_answer(ask: Ask, path: str) -> None:
    body = ask(path, temperature=0).json()
    text = body["choices"][0].get("text") or body["choices"][0]["message"]["content"]
    stop = text[4:6]
    expected = text[: text.index(stop)]
    for one in (stop, ["\0never", stop]):
        (choice,) = ask(path, temperature=0, stop=one).json()["choices"]
        assert (choice["text"] if "text" in choice else choice["message"]["content"]) == expected
        assert choice["finish_reason"] == "stop"
        assert streamed_texts(ask(path, temperature=0, stop=one, stream=True).getvalue(), 1) == [expected]


def test_a_bias_decides(ask: Ask) -> None:
    (wanted,) = byte_tokenizer()("x")["input_ids"]
    body = ask("chat/completions", temperature=0, logit_bias={str(wanted): 100}).json()
    assert body["choices"][0]["message"]["content"] == "x" * 12
    assert body["choices"][0]["finish_reason"] == "length"
    (choice,) = ask("chat/completions", temperature=0, logit_bias={str(EOS): 100}).json()["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "stop")


@pytest.mark.parametrize(
    "path, fields, code, param",
    [
        ("chat/completions", {"messages": LONG}, "context_length_exceeded", "messages"),
        ("chat/completions", {"max_tokens": 600}, "context_length_exceeded", "max_tokens"),
        ("chat/completions", {"max_completion_tokens": 600}, "context_length_exceeded", "max_completion_tokens"),
        ("completions", {"prompt": ["x", "x" * 600]}, "context_length_exceeded", "prompt"),
        ("completions", {"prompt": [VOCAB]}, "invalid_value", "prompt"),
        ("completions", {"logit_bias": {str(VOCAB): 1}}, "invalid_value", "logit_bias"),
        (
            "chat/completions",
            {"tools": [{"type": "function", "function": {"name": "f"}}]},
            "unsupported_parameter",
            "tools",
        ),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_c06_what_cannot_be_done_is_refused_before_a_node_is_asked(
    ask: Ask, generations: Generations, path: str, fields: dict[str, Any], code: str, param: str
) -> None:
    assert_is_error(ask(path, **fields), 400, code, param)
    assert generations.begun == []
