"""A client of the chat API that notes when each piece came and how the answer ended."""

from __future__ import annotations

import http.client
import json
import time
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.mesh import ChaosMesh

DONE = "[DONE]"


@dataclass
class Answer:
    """What came. `pieces` are (when, text) on the monotonic clock; `error` is the error's JSON, `is_whole` whether the
    answer ended as a whole one ends.
    """

    status: int
    headers: dict[str, str]
    pieces: list[tuple[float, str]] = field(default_factory=list)
    completion_tokens: int | None = None
    finish_reason: str | None = None
    errors: list[dict[str, Any]] = field(default_factory=list)
    is_whole: bool = False

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.pieces)

    @property
    def code(self) -> str:
        """The only error's code."""
        (error,) = self.errors
        return str(error["code"])

    def seconds_to(self, token: int, since: float) -> float:
        """From a moment to the arrival of the token-th token, of a text in which each token is a piece."""
        return self.pieces[token - 1][0] - since


def ask(
    mesh: ChaosMesh,
    prompt: str,
    tokens: int,
    *,
    seed: int | None = None,
    stream: bool = True,
    stop_after: int | None = None,
    timeout: float = 60.0,
) -> Answer:
    """One chat: greedy, or sampled with a seed. `stop_after`: the client goes away after so many pieces.

    Raises OSError or HTTPException when the head breaks off.
    """
    body: dict[str, Any] = {
        "model": mesh.model.name,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "temperature": 0 if seed is None else 1,
        "stream": stream,
    }
    if seed is not None:
        body["seed"] = seed
    if stream:
        body["stream_options"] = {"include_usage": True}
    connection = http.client.HTTPConnection("127.0.0.1", mesh.head.port, timeout=timeout)
    try:
        connection.request(
            "POST",
            "/v1/chat/completions",
            json.dumps(body),
            {"Authorization": f"Bearer {mesh.api_key}", "Content-Type": "application/json"},
        )
        response = connection.getresponse()
        answer = Answer(response.status, {name.lower(): value for name, value in response.getheaders()})
        if answer.headers.get("content-type") == "text/event-stream":
            _read_stream(response, answer, stop_after)
        else:
            _read_whole(json.loads(response.read()), answer)
        return answer
    finally:
        connection.close()


def _read_stream(response: http.client.HTTPResponse, answer: Answer, stop_after: int | None) -> None:
    for line in response:
        if not line.startswith(b"data: "):
            continue
        assert not answer.is_whole, "something came after [DONE]"
        data = line.removeprefix(b"data: ").decode().strip()
        if data == DONE:
            answer.is_whole = True
            continue
        event = json.loads(data)
        if "error" in event:
            answer.errors.append(event["error"])
            continue
        assert not answer.errors, "something came after an error"
        if event.get("usage"):
            answer.completion_tokens = event["usage"]["completion_tokens"]
        for choice in event["choices"]:
            answer.finish_reason = choice["finish_reason"] or answer.finish_reason
            if text := choice["delta"].get("content"):
                answer.pieces.append((time.monotonic(), text))
        if stop_after is not None and len(answer.pieces) >= stop_after:
            return


def _read_whole(body: dict[str, Any], answer: Answer) -> None:
    if "error" in body:
        answer.errors.append(body["error"])
        return
    (choice,) = body["choices"]
    answer.pieces.append((time.monotonic(), choice["message"]["content"]))
    answer.completion_tokens = body["usage"]["completion_tokens"]
    answer.finish_reason = choice["finish_reason"]
    answer.is_whole = True
