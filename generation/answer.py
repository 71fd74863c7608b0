"""One running answer: the single function behind every way to ask for text.

`start()` validates, plans and admits before anything is sent to the client, since the first byte of a stream fixes
its status. The loop then runs in a thread of its own and feeds a queue, so that whoever reads it can send keep-alive
comments during a long prefill and can notice that the client has gone.
"""

from __future__ import annotations

import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from generation.errors import Cancelled, ModelNotFound, RequestRefused
from generation.head import TokenLoop
from generation.job import Job, Progress
from generation.metrics import FinishedReason, GenerationObserver
from generation.record import Record
from generation.stops import StopScanner
from nodes.errors import Busy, Draining, MeshnetError
from nodes.sampling_parameters import Sampling
from nodes.wire import mint_session_id

if TYPE_CHECKING:
    from generation.models import APIKey
    from generation.runtime import HeadRuntime

logger = logging.getLogger(__name__)

#: After this much silence the reader gets a Silence event, in seconds.
SILENCE_SECONDS = 5.0

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, kw_only=True)
class TextRequest:
    """What to generate, validated. The defaults change nothing.

    seed None: the head mints one. choice: which one of several answers to one request, all of the same seed.
    counts_prompt: false for all answers to one prompt but the first. stop: the text ends before the first of these.
    logprobs: how many alternatives to report for each token, None for no log probabilities at all.
    """

    model: str
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    choice: int = 0
    counts_prompt: bool = True
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    stop: tuple[str, ...] = ()
    logprobs: int | None = None


@dataclass(frozen=True, kw_only=True)
class ChatRequest(TextRequest):
    """`messages` hold `role` and `content` strings; `tools` are as the OpenAI API describes them."""

    messages: list[dict[str, Any]]
    tools: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, kw_only=True)
class CompletionRequest(TextRequest):
    """A text to go on with, or its token ids."""

    prompt: str | tuple[int, ...]


@dataclass(frozen=True)
class TokenScore:
    """One token's log probability by the model's own logits, and the most probable ones, best first."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class TextDelta:
    """A piece of the answer's text, never empty; the pieces joined are the whole text.

    `tokens`, if log probabilities were asked for, are those that came since the last piece: a token whose text is not
    final yet comes with the piece that holds the end of it.
    """

    text: str
    tokens: tuple[TokenScore, ...] = ()


@dataclass(frozen=True)
class Finished:
    """The end of an answer that ended well. `tokens` came after the last piece of text."""

    reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    tokens: tuple[TokenScore, ...] = ()


@dataclass(frozen=True)
class Silence:
    """Nothing has come for SILENCE_SECONDS; the generation is still running."""


class _Admitted:
    """The first piece of the prompt went through every node: status 200 can be promised."""


class _Stopped:
    """The loop ended early because it was told to."""


_Event = TextDelta | Finished | MeshnetError | _Admitted | _Stopped


class Answer:
    """A generation under way, made by `start`. Read `events()` once, from one thread; `cancel()` from any."""

    def __init__(
        self,
        runtime: HeadRuntime,
        request: TextRequest,
        prompt_ids: list[int],
        budget: int,
        client_gone: Callable[[], bool],
    ) -> None:
        self.id = f"chatcmpl-{secrets.token_urlsafe(16)}"
        self.created = int(time.time())
        self.model = runtime.model
        self.prompt_tokens = len(prompt_ids)
        self._runtime = runtime
        self._client_gone = client_gone
        self._cancelled = threading.Event()
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        job = Job(
            session_id=mint_session_id(),
            prompt_ids=prompt_ids,
            max_new_tokens=budget,
            stop_ids=runtime.prompter.stop_ids,
            sampling=_sampling(request, len(prompt_ids)),
            encode=runtime.prompter.encode,
        )
        self.job = job
        self._stops = StopScanner(request.stop)
        self._scores: list[TokenScore] = []  # of tokens whose text did not go out yet
        self._was_admitted = False
        #: Its last token is there, or its error; only the row is still to be written.
        self.is_over = False
        self._loop = TokenLoop(
            runtime.directory,
            runtime.embedder,
            runtime.settings,
            job,
            line=runtime.line,
            stopped=self._is_stopped,
            admitted=self._admit,
            wait=self._cancelled.wait,
        )
        self._observer = GenerationObserver(runtime.metrics, self._loop.progress, len(prompt_ids))
        self._thread = threading.Thread(target=self._run, name=f"meshnet-loop {job.session_id[:8]}", daemon=True)

    @property
    def progress(self) -> Progress:
        return self._loop.progress

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for slots, for the first time or again, or for its first step."""
        return not self._was_admitted or self._runtime.line.holds(self._loop)

    def events(self) -> Iterator[TextDelta | Finished | Silence]:
        """What comes, as it comes; ends after Finished, or early after `cancel()`. Raises MeshnetError on failure."""
        while True:
            try:
                event = self._events.get(timeout=SILENCE_SECONDS)
            except queue.Empty:
                yield Silence()
                continue
            if isinstance(event, _Stopped):
                return
            if isinstance(event, MeshnetError):
                raise event
            if not isinstance(event, _Admitted):
                yield event
            if isinstance(event, Finished):
                return

    def cancel(self) -> None:
        """Stops the loop before its next step or piece; its sessions are released. May be called at any time."""
        self._cancelled.set()

    # -- for `start` and the runtime

    def begin(self, record: Record) -> None:
        """Starts the loop and waits until the first piece of the prompt went through every node.

        Raises the loop's error; Cancelled when it was cancelled meanwhile, Draining when the head leaves.
        """
        self._record = record
        try:
            self._thread.start()
        except RuntimeError as error:
            busy = Busy(f"No thread could be started: {error}")
            record.end(self.progress, busy, cancelled=False)
            self._observer.ended("error")
            raise busy from None
        first = self._events.get()
        if isinstance(first, MeshnetError):
            raise first
        if isinstance(first, _Stopped):
            # Of a head that leaves nothing was promised yet: another one may be asked for the same.
            raise Draining("This head is leaving.") if self._runtime.is_leaving else Cancelled()

    def join(self, timeout: float) -> None:
        """Waits for the loop's end, the written row included."""
        self._thread.join(timeout)

    def arrive(self) -> None:
        """Takes its place behind those who wait for a slot. Called by the runtime, in the order of admission."""
        self._loop.arrive()

    def withdraw(self) -> None:
        self._loop.withdraw()

    # -- on the loop's thread

    def _is_stopped(self) -> bool:
        """Asked before every step and piece: a client that went away is noticed there, streaming or not."""
        if self._client_gone():
            self._cancelled.set()
        return self._cancelled.is_set()

    def _admit(self) -> None:
        if not self._was_admitted:
            self._was_admitted = True
            self._observer.admitted()
            self._events.put(_Admitted())
            self._runtime.note_load()

    def _run(self) -> None:
        end: Finished | _Stopped | MeshnetError = MeshnetError()
        try:
            end = self._outcome()
            # Before the end is told: who has the answer finds it counted. It takes microseconds and cannot fail.
            self._observer.ended(_finished_reason(end))
            self.is_over = True
            self._runtime.note_load()
        finally:
            # First of all: nothing that follows may keep whoever reads from learning of the end.
            self._events.put(end)
            try:
                self._runtime.release(self.progress.touched, self.job.session_id)
                error = end if isinstance(end, MeshnetError) else None
                self._record.end(self.progress, error, cancelled=self._cancelled.is_set())
            finally:
                self._runtime.forget(self)

    def _outcome(self) -> Finished | _Stopped | MeshnetError:
        try:
            self._speak()
        except MeshnetError as error:
            return error
        except Exception:
            logger.exception("A generation failed.")
            return MeshnetError("The generation failed inside the head; its log says why.")
        if not self.progress.finish_reason:
            return _Stopped()
        reason: FinishReason = "length" if self.progress.finish_reason == "length" else "stop"
        return Finished(reason, self.prompt_tokens, self.progress.completion_tokens, tuple(self._scores))

    def _speak(self) -> None:
        text = self._runtime.prompter.detokenizer()
        tokens = self._loop.tokens()
        for token_id in tokens:
            self._observer.token()
            scores = self._loop.logprobs
            if scores is not None:
                self._scores.append(TokenScore(token_id, scores.logprob, scores.top))
            self._say(self._stops.push(text.push(token_id)))
            if self._stops.hit:
                tokens.close()  # no step for what nobody will read
                self.progress.finish_reason = "stop"
                return
        self._say(self._stops.push(text.flush()))
        if self._stops.hit:
            self.progress.finish_reason = "stop"
        else:
            self._say(self._stops.flush())

    def _say(self, piece: str) -> None:
        if piece:
            scores, self._scores = tuple(self._scores), []
            self._events.put(TextDelta(piece, scores))


def _finished_reason(end: Finished | _Stopped | MeshnetError) -> FinishedReason:
    if isinstance(end, Finished):
        return end.reason
    return "abort" if isinstance(end, _Stopped) else "error"


def _sampling(request: TextRequest, prompt_len: int) -> Sampling:
    """As the tail reads it. A greedy choice draws nothing, so that its steps carry no seed."""
    return Sampling(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        min_p=request.min_p,
        seed=0 if request.temperature == 0 else secrets.randbits(63) if request.seed is None else request.seed,
        choice=request.choice,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        repetition_penalty=request.repetition_penalty,
        logit_bias=request.logit_bias,
        prompt_len=prompt_len if request.presence_penalty or request.frequency_penalty else 0,
        logprobs=request.logprobs,
    )


def start(
    runtime: HeadRuntime,
    request: ChatRequest | CompletionRequest,
    *,
    api_key: APIKey | None,
    streamed: bool,
    client_gone: Callable[[], bool] = lambda: False,
) -> Answer:
    """Validates, plans, records and admits a generation. Returns once status 200 can be promised.

    `client_gone` is asked from the loop's thread between steps; once true, the generation is cancelled. Raises
    ModelNotFound, RequestRefused, ContextLengthExceeded (nothing was done), NoRoute, Busy, Draining, GaveUp or
    Cancelled.
    """
    if request.model not in runtime.models():
        raise ModelNotFound(
            f"The model {request.model!r:.200} is not served here; served: {', '.join(runtime.models())}.",
            param="model",
        )
    for token_id, _ in request.logit_bias:
        if not 0 <= token_id < runtime.settings.vocab_size:
            raise RequestRefused(f"The model has no token {token_id}.", param="logit_bias")
    prompt_ids = _prompt_ids(runtime, request)
    field = "messages" if isinstance(request, ChatRequest) else "prompt"
    budget = runtime.prompter.budget(len(prompt_ids), request.max_tokens, param=field)
    answer = Answer(runtime, request, prompt_ids, budget, client_gone)
    runtime.admit(answer)
    try:
        record = Record.begin(
            runtime,
            answer.job,
            api_key=api_key,
            streamed=streamed,
            choice=request.choice,
            counts_prompt=request.counts_prompt,
        )
        answer.begin(record)
    except BaseException:
        answer.cancel()
        runtime.forget(answer)
        raise
    return answer


def _prompt_ids(runtime: HeadRuntime, request: ChatRequest | CompletionRequest) -> list[int]:
    """Raises RequestRefused for what the template refuses, for ids that the model does not have, and for no token."""
    if isinstance(request, ChatRequest):
        return runtime.prompter.ids(request.messages, request.tools)
    if isinstance(request.prompt, str):
        found = runtime.prompter.text_ids(request.prompt)
    else:
        found = list(request.prompt)
        if any(not 0 <= token_id < runtime.settings.vocab_size for token_id in found):
            raise RequestRefused("The prompt holds a token that the model does not have.", param="prompt")
    if not found:
        raise RequestRefused("The prompt holds no token.", param="prompt")
    return found
