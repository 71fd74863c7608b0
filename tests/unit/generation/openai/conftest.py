"""A head whose answers are scripted: no model, no nodes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from django.apps import apps
from django.test import Client
from django.utils import timezone

from generation import answer as answers
from generation.answer import ChatRequest, CompletionRequest, Finished, TextDelta
from generation.errors import ContextLengthExceeded, ModelNotFound
from generation.models import APIKey
from tests.processes import wait_until

MODEL = "toy/llama"
VOCAB = 320
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "What is the capital of France?"}]}
COMPLETION = {"model": MODEL, "prompt": "The capital of France is"}
PARIS = (TextDelta("Par"), TextDelta("is."), Finished("stop", 7, 2))


class FakeAnswer:
    """Plays a script: events are given out, exceptions are raised, functions are called."""

    def __init__(self, script: tuple[Any, ...], *, number: int = 1) -> None:
        self.created = 1_700_000_000 + number
        self.model = MODEL
        self.cancelled = 0
        self.given = 0
        self.is_over = False
        self._script = script

    def events(self) -> Iterator[Any]:
        for step in self._script:
            if isinstance(step, BaseException):
                self.is_over = True
                raise step
            if callable(step):
                step()
                continue
            self.given += 1
            self.is_over = isinstance(step, Finished)
            yield step
        self.is_over = True

    def cancel(self) -> None:
        self.cancelled += 1

    def join(self, timeout: float) -> None:
        """The script is played by whoever reads: give that thread a turn."""
        wait_until(lambda: self.is_over, timeout, "a script was not played")


class FakePrompter:
    """Every character is a token whose id is its code; 200 to 255 are lone bytes."""

    context_length = 64
    supports_tools = False

    def text_ids(self, text: str) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(self.token_text(token_id) for token_id in ids)

    def budget(self, prompt_tokens: int, max_tokens: int | None, *, param: str = "messages") -> int:
        if prompt_tokens >= self.context_length:
            raise ContextLengthExceeded("Too long.", param=param)
        if max_tokens is not None and max_tokens > self.context_length - prompt_tokens:
            raise ContextLengthExceeded("Too long.", param="max_tokens")
        return self.context_length - prompt_tokens if max_tokens is None else max_tokens

    def token_text(self, token_id: int) -> str:
        return "\ufffd" if token_id >= 200 else chr(token_id)

    def token_bytes(self, token_id: int) -> list[int]:
        return [token_id]


@dataclass
class FakeHead:
    """Stands in for HeadRuntime and for `answer.start`; keeps what was asked.

    `scripts` are those of the first answers, `script` is that of all others. `refusals` are raised for the starts
    that they count, `refusal` for all.
    """

    script: tuple[Any, ...] = PARIS
    scripts: list[tuple[Any, ...]] = field(default_factory=list)
    refusal: Exception | None = None
    refusals: dict[int, Exception] = field(default_factory=dict)
    prompter: FakePrompter = field(default_factory=FakePrompter)
    boot_id: str = "boot"
    settings: Any = field(default_factory=lambda: SimpleNamespace(fingerprint="f1", dtype="float32", vocab_size=VOCAB))
    state: dict[str, Any] = field(default_factory=lambda: {"ready": True})
    asked: list[dict[str, Any]] = field(default_factory=list)
    made: list[FakeAnswer] = field(default_factory=list)

    def models(self) -> list[str]:
        return [MODEL]

    def ready(self) -> dict[str, Any]:
        return self.state

    def start(
        self,
        runtime: Any,
        request: ChatRequest | CompletionRequest,
        *,
        api_key: APIKey | None,
        streamed: bool,
        client_gone: Callable[[], bool],
    ) -> FakeAnswer:
        assert runtime is self
        assert client_gone() is False
        self.asked.append({"request": request, "api_key": api_key, "streamed": streamed})
        if request.model != MODEL:
            raise ModelNotFound(f"{request.model} is not served here.", param="model")
        refusal = self.refusals.get(len(self.asked), self.refusal)
        if refusal is not None:
            raise refusal
        script = self.scripts[len(self.made)] if len(self.made) < len(self.scripts) else self.script
        self.made.append(FakeAnswer(script, number=len(self.made) + 1))
        return self.made[-1]

    @property
    def request(self) -> Any:
        """What the only answer was asked for."""
        (asked,) = self.asked
        return asked["request"]


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> FakeHead:
    fake = FakeHead()
    monkeypatch.setattr(apps.get_app_config("generation"), "runtime", fake)
    monkeypatch.setattr(answers, "start", fake.start)
    return fake


@pytest.fixture
def key(db: None) -> str:
    # Just used: that it is used now is not written again.
    _, key = APIKey.objects.create_key(name="test", last_used_at=timezone.now())
    return key


@pytest.fixture
def post(head: FakeHead, key: str) -> Iterator[Callable[..., Any]]:
    """post(body) asks for a chat: body as bytes, or anything that becomes JSON.

    Streams that were not read to their end are closed with the test, as servers do: one that is collected later would
    give back what it holds, and the next test's row may have the same number.
    """
    client = Client(raise_request_exception=False)
    responses: list[Any] = []

    def send(body: Any = CHAT, *, path: str = "/v1/chat/completions", **extra: Any) -> Any:
        headers = {"Authorization": f"Bearer {key}", **extra.pop("headers", {})}
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        content_type = extra.pop("content_type", "application/json")
        responses.append(client.post(path, data=data, content_type=content_type, headers=headers, **extra))
        return responses[-1]

    yield send
    for response in responses:
        response.close()


def assert_is_error(response: Any, status: int, code: str | None, param: str | None = None) -> dict[str, Any]:
    """The whole shape of an error, and nothing of HTML or a traceback in it."""
    assert response.status_code == status, response.content
    assert response.headers["Content-Type"].startswith("application/json")
    body = response.json()
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str) and error["message"]
    assert isinstance(error["type"], str) and error["type"]
    assert (error["code"], error["param"]) == (code, param)
    assert "Traceback" not in error["message"] and "<html" not in error["message"].lower()
    assert response.headers["x-request-id"]
    return error
