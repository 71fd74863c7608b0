"""The answers to one request: `n` to each prompt, every one a generation of its own."""

from __future__ import annotations

import hashlib
import queue
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from generation import answer as answers
from generation.answer import Answer, ChatRequest, CompletionRequest, Finished, Silence, TextDelta
from generation.errors import Cancelled
from nodes.errors import Busy
from nodes.process import versions

if TYPE_CHECKING:
    from generation.models import APIKey
    from generation.runtime import HeadRuntime

Event = TextDelta | Finished | Silence

#: How long to wait for a choice under way before a later one asks for its slots again, in seconds.
PAUSE_SECONDS = 1.0


@dataclass(frozen=True)
class Usage:
    """Tokens of a whole request. Each prompt counts once, however many answers it has."""

    prompt_tokens: int
    completion_tokens: int


class Choices:
    """Answers under way, read as one. Read `events()` once, from one thread; `cancel()` from any.

    Choice 0 has begun. The others are begun by `begin`, which is given their number, while `events()` is read: the
    request has its status then, and a mesh with few slots answers them one after the other.
    """

    def __init__(self, first: Answer, *, n: int, total: int, id: str, fingerprint: str) -> None:
        self.id = id
        self.created = first.created
        self.model = first.model
        self.fingerprint = fingerprint
        #: Starts a later choice; may wait for slots. Set by `start`.
        self.begin: Callable[[int], Answer] | None = None
        self._n = n
        self._total = total
        self._begun = [first]
        self._cancelled = False
        self._lock = threading.Lock()
        self._finished: dict[int, Finished] = {}

    def __len__(self) -> int:
        return self._total

    @property
    def is_cancelled(self) -> bool:
        return self._cancelled

    def events(self) -> Iterator[tuple[int, Event]]:
        """What comes of which choice, as it comes; ends when all are finished.

        Raises the first error of any, Cancelled when one was ended early. Whoever stops reading must cancel.
        """
        for index, event in self._single() if len(self) == 1 else self._merged():
            if isinstance(event, Finished):
                self._finished[index] = event
            yield index, event

    def usage(self) -> Usage:
        """Of what has finished."""
        return Usage(
            sum(event.prompt_tokens for index, event in self._finished.items() if index % self._n == 0),
            sum(event.completion_tokens for event in self._finished.values()),
        )

    def cancel(self) -> None:
        """Ends all; those that have not begun never will."""
        with self._lock:
            self._cancelled = True
            begun = list(self._begun)
        for choice in begun:
            choice.cancel()

    def _single(self) -> Iterator[tuple[int, Event]]:
        for event in self._begun[0].events():
            yield 0, event
            if isinstance(event, Finished):
                return
        raise Cancelled()

    def _merged(self) -> Iterator[tuple[int, Event]]:
        """A thread reads each answer, and one begins them. All end with the answers."""
        merged: queue.SimpleQueue[tuple[int, Event | Exception]] = queue.SimpleQueue()
        _in_thread(_read, 0, self._begun[0], merged)
        _in_thread(self._begin_others, merged)
        unfinished = set(range(len(self)))
        while unfinished:
            index, event = merged.get()
            if isinstance(event, Exception):
                raise event
            if isinstance(event, Finished):
                unfinished.discard(index)
            if isinstance(event, Silence) and index != min(unfinished):
                continue  # one keep-alive is enough for all
            yield index, event

    def _begin_others(self, merged: queue.SimpleQueue[tuple[int, Event | Exception]]) -> None:
        for index in range(1, len(self)):
            try:
                choice = self._begin_one(index)
                with self._lock:
                    self._begun.append(choice)
                    is_late = self._cancelled
                if is_late:
                    choice.cancel()
                _in_thread(_read, index, choice, merged)
            except Exception as error:
                merged.put((index, error))
                return

    def _begin_one(self, index: int) -> Answer:
        """Where there are no slots for it, it waits for the choices before it to free theirs."""
        assert self.begin is not None  # noqa: S101  # by `start`
        while True:
            running = [choice for choice in self._begun if not choice.is_over]
            if self._cancelled:
                raise Cancelled()
            try:
                return self.begin(index)
            except Busy:
                if not running:
                    raise
                running[0].join(PAUSE_SECONDS)


def _in_thread(work: Callable[..., None], *arguments: object) -> None:
    try:
        threading.Thread(target=work, args=arguments, name="meshnet-choices", daemon=True).start()
    except RuntimeError as error:
        raise Busy(f"No thread could be started: {error}") from None


def _read(index: int, choice: Answer, merged: queue.SimpleQueue[tuple[int, Event | Exception]]) -> None:
    try:
        for event in choice.events():
            merged.put((index, event))
            if isinstance(event, Finished):
                return
        merged.put((index, Cancelled()))
    except Exception as error:
        merged.put((index, error))


def start(
    runtime: HeadRuntime,
    requests: Sequence[ChatRequest] | Sequence[CompletionRequest],
    *,
    n: int,
    prefix: str,
    api_key: APIKey | None,
    streamed: bool,
    client_gone: Callable[[], bool],
) -> Choices:
    """Begins the first of `n` answers to each request; returns once status 200 can be promised.

    The seed is minted here: the answers differ by their number alone, so that a request with a seed can be repeated.
    Raises what `answer.start` raises.
    """
    seed = secrets.randbits(63) if requests[0].seed is None else requests[0].seed

    def begin(index: int, gone: Callable[[], bool]) -> Answer:
        return answers.start(
            runtime,
            replace(requests[index // n], seed=seed, choice=index, counts_prompt=index % n == 0),
            api_key=api_key,
            streamed=streamed,
            client_gone=gone,
        )

    choices = Choices(
        begin(0, client_gone),
        n=n,
        total=len(requests) * n,
        id=f"{prefix}-{secrets.token_urlsafe(16)}",
        fingerprint=system_fingerprint(runtime),
    )
    choices.begin = lambda index: begin(index, lambda: choices.is_cancelled or client_gone())
    return choices


def system_fingerprint(runtime: HeadRuntime) -> str:
    """Changes when what computes the answers changes: the model's files, the number format, or the libraries."""
    parts = [runtime.settings.fingerprint, runtime.settings.dtype, versions()["torch"], versions()["transformers"]]
    return f"fp_{hashlib.sha256(','.join(parts).encode()).hexdigest()[:12]}"
