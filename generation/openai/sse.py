"""An answer as server-sent events."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from django.http import HttpRequest

from generation.answer import Silence
from generation.openai.errors import Problem, report

if TYPE_CHECKING:
    from generation.openai.choices import Choices
    from generation.openai.responses import Shape

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


class EventStream:
    """Iterates over the bytes of one streamed answer, one event each. Read and closed by the server's thread.

    The order is: what opens each choice, text, one finish per choice, usage if asked for, [DONE]. An error in between
    is one event with the error JSON and then the end without [DONE], so that nobody takes a cut answer for a whole
    one. If it ends before the answer has, the answer is cancelled; also if nothing was read at all, which a generator
    would not notice.
    """

    def __init__(
        self,
        choices: Choices,
        shape: Shape,
        *,
        client_gone: Callable[[], bool] = lambda: False,
        request: HttpRequest | None = None,
    ) -> None:
        self._choices = choices
        self._shape = shape
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
            self._choices.cancel()

    def _run(self) -> Iterator[bytes]:
        try:
            yield from map(_event, self._shape.opening())
            for index, event in self._choices.events():
                if isinstance(event, Silence):
                    if self._client_gone():
                        return
                    yield KEEP_ALIVE
                    continue
                for chunk in self._shape.take(index, event):
                    if self._client_gone():
                        return
                    yield _event(chunk)
            self._ended = True
            if self._shape.include_usage:
                yield _event(self._shape.usage_chunk())
            yield DONE
        except Exception as error:
            # Status 200 went out long ago: whatever it was, the client learns of it here or never.
            report(error, self._request)
            yield _event(Problem(error, work_done=True).body)


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
