"""An answer as server-sent events."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from django.http import HttpRequest

from generation.answer import Answer, Finished, TextDelta
from generation.errors import Cancelled
from generation.openai import responses
from generation.openai.errors import Problem, report

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


class EventStream:
    """Iterates over the bytes of one streamed answer, one event each. Read and closed by the server's thread.

    The order is: the role, text, one finish, usage if asked for, [DONE]. An error in between is one event
    with the error JSON and then the end without [DONE], so that nobody takes a cut answer for a whole one. If
    it ends before the answer has, the answer is cancelled; also if nothing was read at all, which a generator
    would not notice.
    """

    def __init__(
        self,
        answer: Answer,
        *,
        include_usage: bool = False,
        client_gone: Callable[[], bool] = lambda: False,
        request: HttpRequest | None = None,
    ) -> None:
        self._answer = answer
        self._include_usage = include_usage
        self._client_gone = client_gone
        self._request = request
        self._ended = False
        self._pieces = self._run()

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        return next(self._pieces)

    def close(self) -> None:
        """The client has gone, or everything was sent."""
        self._pieces.close()  # type: ignore[attr-defined]  # a generator
        if not self._ended:
            self._ended = True
            self._answer.cancel()

    def _run(self) -> Iterator[bytes]:
        try:
            yield self._chunk({"role": "assistant", "content": ""})
            for event in self._answer.events():
                if isinstance(event, Finished):
                    self._ended = True
                    yield self._chunk({}, event.reason)
                    if self._include_usage:
                        yield _event(responses.usage_chunk(self._answer, event))
                    yield DONE
                    return
                if self._client_gone():
                    return
                yield self._chunk({"content": event.text}) if isinstance(event, TextDelta) else KEEP_ALIVE
            raise Cancelled()
        except Exception as error:
            # Status 200 went out long ago: whatever it was, the client learns of it here or never.
            report(error, self._request)
            yield _event(Problem(error, work_done=True).body)

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        return _event(responses.chunk(self._answer, delta, finish_reason, include_usage=self._include_usage))


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
