"""A head whose answers are scripted: no model, no nodes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.apps import apps
from django.test import Client

from generation import answer as answers
from generation.answer import ChatRequest, Finished, TextDelta
from generation.errors import ModelNotFound
from generation.models import APIKey

MODEL = "toy/llama"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "What is the capital of France?"}]}
PARIS = (TextDelta("Par"), TextDelta("is."), Finished("stop", 7, 2))


class FakeAnswer:
    """Plays a script: events are given out, exceptions are raised, functions are called."""

    def __init__(self, script: tuple[Any, ...], *, number: int = 1) -> None:
        self.id = f"chatcmpl-{number}"
        self.created = 1_700_000_000 + number
        self.model = MODEL
        self.cancelled = 0
        self.given = 0
        self._script = script

    def events(self) -> Iterator[Any]:
        for step in self._script:
            if isinstance(step, BaseException):
                raise step
            if callable(step):
                step()
                continue
            self.given += 1
            yield step

    def cancel(self) -> None:
        self.cancelled += 1


@dataclass
class FakeHead:
    """Stands in for HeadRuntime and for `answer.start`; keeps what was asked."""

    script: tuple[Any, ...] = PARIS
    refusal: Exception | None = None
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
        request: ChatRequest,
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
        if self.refusal is not None:
            raise self.refusal
        self.made.append(FakeAnswer(self.script, number=len(self.made) + 1))
        return self.made[-1]

    @property
    def request(self) -> ChatRequest:
        """What the only request came to."""
        (asked,) = self.asked
        request: ChatRequest = asked["request"]
        return request


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> FakeHead:
    fake = FakeHead()
    monkeypatch.setattr(apps.get_app_config("generation"), "runtime", fake)
    monkeypatch.setattr(answers, "start", fake.start)
    return fake


@pytest.fixture
def key(db: None) -> str:
    _, key = APIKey.objects.create_key(name="test")
    return key


@pytest.fixture
def post(head: FakeHead, key: str) -> Callable[..., Any]:
    """post(body) asks for a chat: body as bytes, or anything that becomes JSON."""
    client = Client(raise_request_exception=False)

    def send(body: Any = CHAT, *, path: str = "/v1/chat/completions", **extra: Any) -> Any:
        headers = {"Authorization": f"Bearer {key}", **extra.pop("headers", {})}
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        content_type = extra.pop("content_type", "application/json")
        return client.post(path, data=data, content_type=content_type, headers=headers, **extra)

    return send


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
