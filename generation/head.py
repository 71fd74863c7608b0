"""The autoregressive loop: prefill the prompt once, then one token a step, and repair what breaks.

Knows neither HTTP nor the database nor text: token ids in, token ids out. Nodes, embeddings, clock, waiting and the
way to release sessions are passed in.

A step that fails is never sent again (it may have been carried out): the whole text so far is prefilled anew under
the same session id, which replaces whatever the nodes hold, and the loop goes on with cached steps.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from generation.directory import NodeDirectory
from generation.errors import GaveUp, NoRoute
from generation.job import HopTimes, Job, LoopSettings, Progress
from generation.route import Hop, Route, RouteNode, plan
from generation.waiting_line import WaitingLine
from nodes.client import StepAnswer
from nodes.errors import (
    Busy,
    ComputeFailed,
    Draining,
    KVCacheMiss,
    MeshnetError,
    NodeProtocolError,
    NodeUnreachable,
    NotReady,
    Released,
    WrongLayers,
    WrongModel,
)
from nodes.framing import Payload
from nodes.wire import StepHeaders

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

#: How often those who stand in line look whether it is their turn.
LINE_SECONDS = 0.1
#: How long the first in line leaves the nodes alone, whatever they suggest.
LONGEST_PAUSE_SECONDS = 2.0
#: A node that does not take a slot back in time frees it by itself, once the session is no longer active.
GIVE_BACK_SECONDS = 5.0
#: A time line is for people: it ends after so many events.
MOST_EVENTS = 200
#: Re-prefills in a row without a new token before the generation is given up.
MAX_REPAIRS = 3
#: Faults that another plan may repair; the node that raised one is avoided for a while.
_NODE_FAULTS = (NodeUnreachable, NodeProtocolError, ComputeFailed)
#: Faults of the plan: the node is well, but not (any more) what the route took it for.
_ROUTE_FAULTS = (Draining, NotReady, WrongModel, WrongLayers, Released)


class Embeds(Protocol):
    """Token ids to the hidden states before layer 0, [1, T, hidden]."""

    def embed(self, token_ids: list[int]) -> torch.Tensor: ...


class TokenLoop:
    """Runs one job. Not shared between threads; make one for each generation."""

    def __init__(
        self,
        directory: NodeDirectory,
        embedder: Embeds,
        settings: LoopSettings,
        job: Job,
        *,
        line: WaitingLine | None = None,
        stopped: Callable[[], bool] = lambda: False,
        admitted: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] = time.sleep,
        rng: random.Random | None = None,
    ) -> None:
        self._directory = directory
        self._embedder = embedder
        self._settings = settings
        self._job = job
        self._line = WaitingLine() if line is None else line
        self._stopped = stopped
        self._admitted = admitted
        self._clock = clock
        self._wait = wait
        self._rng = rng or random.Random()  # noqa: S311  # spreads load; nothing secret
        self._has_prefilled = False
        self.progress = Progress(started=clock(), cached=job.cache)

    @property
    def session_id(self) -> str:
        return self._job.session_id

    def tokens(self) -> Iterator[int]:
        """The new token ids, one by one; ends at a stop id, at the limit, or when `stopped()` says so.

        Raises NoRoute, Busy (no slot in time) or GaveUp. The session is still held when it returns or raises:
        the caller releases it on the nodes of `progress.touched`.
        """
        try:
            yield from self._tokens()
        finally:
            self._line.leave(self)

    def _tokens(self) -> Iterator[int]:
        job, progress = self._job, self.progress
        text = list(job.prompt_ids)
        repairs = 0
        must_prefill = True
        give_up_at: float | None = None
        if len(self._line):
            give_up_at = self._clock() + self._settings.busy_wait
            self._wait_for_turn(Busy(), give_up_at)  # others came first
        while not self._stopped():
            try:
                new = self._prefill(text) if must_prefill or not progress.cached else self._decode(text)
            except (Busy, NoRoute) as error:
                # Either somebody else's generations hold every slot, or, in the middle of an answer, layers are gone
                # for a moment. What was got elsewhere is given back for the time of the wait.
                if isinstance(error, NoRoute) and not progress.completion_tokens:
                    raise
                give_up_at = give_up_at or self._clock() + self._settings.busy_wait
                self._wait_for_turn(error, give_up_at)
                must_prefill = True
                continue
            except _Uncached:
                progress.cached = False
                self._give_back()
                continue
            except (KVCacheMiss, *_NODE_FAULTS, *_ROUTE_FAULTS) as error:
                self._note(error)
                repairs += 1
                if repairs > MAX_REPAIRS:
                    raise GaveUp(
                        f"No new token after {MAX_REPAIRS} repairs; the last fault was: {error.detail}"
                    ) from error
                must_prefill = True
                continue
            if new is None:
                return  # stopped between two pieces of the prompt
            if must_prefill and progress.completion_tokens:
                self._tell("decode", "")  # the end of a re-prefill, as the first token is that of the prefill
            repairs, must_prefill, give_up_at = 0, False, None
            for token_id in new:
                if token_id in job.stop_ids:
                    progress.finish_reason = "stop"
                    return
                text.append(token_id)
                self._count()
                yield token_id
                if progress.completion_tokens >= job.max_new_tokens:
                    progress.finish_reason = "length"
                    return
            if not new:
                progress.finish_reason = "stop"  # an old tail's empty text
                return

    # -- one pass over the route

    def _prefill(self, text: list[int]) -> list[int] | None:
        """The whole text through the route, in pieces when it is cached; None when stopped on the way."""
        route = self.progress.route or self._plan()
        self._tell("prefill" if self.progress.prefills == 0 else "re-prefill", f"{len(text)} tokens")
        self.progress.prefills += 1
        size = self._settings.piece_tokens if self.progress.cached else len(text)
        new: list[int] = []
        for start in range(0, len(text), size):
            if start and self._stopped():
                return None
            piece = text[start : start + size]
            last = start + size >= len(text)
            new = self._pass(route, piece, past_len=start, fresh=start == 0, want_token=last)
            self._line.leave(self)  # the slots are taken: the next in line may ask
            self._admitted()
        if self.progress.cached:
            self.progress.reprefills += self._has_prefilled
            self._has_prefilled = True
        return new

    def _decode(self, text: list[int]) -> list[int]:
        """The newest token alone through the route."""
        route = self.progress.route or self._plan()
        return self._pass(route, text[-1:], past_len=len(text) - 1, fresh=False, want_token=True)

    def _pass(self, route: Route, ids: list[int], *, past_len: int, fresh: bool, want_token: bool) -> list[int]:
        """Tokens through every hop; the new ids (none when none is wanted)."""
        hidden = self._embedder.embed(ids)
        *inner, tail = route.hops
        for hop in inner:
            headers = self._headers(hop, route, past_len, fresh)
            with self._blaming(hop):
                answer = self._step(hop, headers, Payload(hidden))
                if answer.hidden is None or answer.hidden.shape != hidden.shape:
                    raise NodeProtocolError(f"{hop.url} did not answer hidden states of the shape it was sent.")
                self._check_acknowledgement(hop, answer, past_len + len(ids))
            hidden = answer.hidden
        headers = self._headers(tail, route, past_len, fresh)
        with self._blaming(tail):
            answer = self._step(tail, headers, Payload(hidden, sampling=self._sampling(want_token)))
            if answer.hidden is not None:
                raise NodeProtocolError(f"{tail.url} answered hidden states instead of a token.")
            self._check_acknowledgement(tail, answer, past_len + len(ids))
            return self._new_tokens(tail, answer) if want_token else []

    def _step(self, hop: Hop, headers: StepHeaders, payload: Payload) -> StepAnswer:
        self.progress.touched.add(hop.url)
        begun = self._clock()
        answer = self._directory.client(hop.url).forward(headers, payload, timeout=self._settings.step_timeout)
        self.progress.hops.setdefault(hop.url, HopTimes()).add((self._clock() - begun) * 1e3, answer.timings)
        return answer

    def _headers(self, hop: Hop, route: Route, past_len: int, fresh: bool) -> StepHeaders:
        cached = self.progress.cached
        return StepHeaders(
            session=self._job.session_id if cached else None,
            cache=("prefill" if fresh else "decode") if cached else None,
            past_len=past_len if cached and not fresh else None,
            start_layer=hop.layers.start,
            end_layer=hop.layers.end,
            model=route.fingerprint,
        )

    @contextmanager
    def _blaming(self, hop: Hop) -> Iterator[None]:
        """Notes on an error which node it is about."""
        try:
            yield
        except MeshnetError as error:
            error.node = hop.url
            raise

    def _check_acknowledgement(self, hop: Hop, answer: StepAnswer, tokens: int) -> None:
        """The acknowledgement is the capability check: a node that does not send it has cached nothing, and a decode
        to it would be silent nonsense.
        """
        if not self.progress.cached:
            return
        if answer.past_len is None:
            logger.warning("%s does not cache; the generation goes on without a cache.", hop.url)
            raise _Uncached()
        if answer.past_len != tokens:
            raise NodeProtocolError(f"{hop.url} holds {answer.past_len} tokens where {tokens} were sent.")

    def _sampling(self, want_token: bool) -> dict[str, object] | None:
        params = self._job.sampling
        if not want_token:
            return {"want_token": False}
        return None if params.temperature == 0 else params.as_json()

    def _new_tokens(self, tail: Hop, answer: StepAnswer) -> list[int]:
        if answer.token_id is not None:
            if not 0 <= answer.token_id < self._settings.vocab_size:
                raise NodeProtocolError(f"{tail.url} answered a token that the model does not have.")
            return [answer.token_id]
        if answer.has_token_id or self._job.encode is None or answer.text is None:
            raise NodeProtocolError(f"{tail.url} answered no token.")
        # A tail of the old protocol: text only, and an empty text at the end.
        if self.progress.cached:
            raise _Uncached()
        return self._job.encode(answer.text)

    # -- what changes around the passes

    def _plan(self) -> Route:
        fresh = self.progress.failovers > 0
        try:
            route = self._plan_on(self._directory.ready(fresh=fresh))
        except NoRoute:
            if fresh:
                raise
            # What is known may be seconds old, and a node may have come back since.
            route = self._plan_on(self._directory.ready(fresh=True))
        self.progress.route = route
        return route

    def _plan_on(self, nodes: Sequence[RouteNode]) -> Route:
        return plan(
            nodes,
            fingerprint=self._settings.fingerprint,
            dtype=self._settings.dtype,
            n_layers=self._settings.n_layers,
            context_length=self._settings.context_length,
            avoid=self._directory.suspects(),
            prefer=self._rng.choice,
        )

    def _note(self, error: MeshnetError) -> None:
        if isinstance(error, KVCacheMiss):
            self.progress.cache_misses += 1
            self._tell("cache miss", f"{error.extra.get('reason')} on {error.node}")
            logger.info("%s…: cache miss (%s); prefilling again.", self.session_id[:8], error.extra.get("reason"))
            return
        self._tell("failover", f"{error.code} on {error.node}")
        if isinstance(error, _NODE_FAULTS) and error.node is not None:
            self._directory.suspect(error.node)
        self.progress.failovers += 1
        self.progress.route = None
        logger.warning("%s…: planning again after: %s", self.session_id[:8], error.detail)

    def _wait_for_turn(self, error: Busy | NoRoute, give_up_at: float) -> None:
        """Waits until those who came before have their slots, and a while before the nodes are asked again.

        Returns early when stopped; raises the error when the time is over.
        """
        if self._clock() >= give_up_at:
            raise error
        self._tell("waiting", error.code)
        self._give_back()
        self._line.enter(self)
        if self._line.is_first(self):
            # The first in line asks the nodes again after a pause, with jitter against the lines of other workers.
            pause = min(error.retry_after or 1, LONGEST_PAUSE_SECONDS) * self._rng.uniform(0.5, 1.0)
            self._wait(min(pause, give_up_at - self._clock()))
        while not self._line.is_first(self) and not self._stopped():
            if self._clock() >= give_up_at:
                raise error
            self._wait(LINE_SECONDS)

    def _give_back(self) -> None:
        """Frees the session's slots on every node touched so far; the id stays this generation's own."""
        for url in sorted(self.progress.touched):
            try:
                self._directory.client(url).give_back(self._job.session_id, timeout=GIVE_BACK_SECONDS)
            except MeshnetError as error:
                logger.info("%s could not be told to free a slot: %s", url, error.detail)
        self.progress.touched.clear()
        self.progress.route = None

    def _tell(self, event: str, detail: str) -> None:
        """Puts an event on the time line; stateless generations would put one for every token."""
        events = self.progress.events
        if len(events) < MOST_EVENTS and not (event == "re-prefill" and not self.progress.cached):
            events.append((round(self._clock() - self.progress.started, 3), event, detail))

    def _count(self) -> None:
        now = self._clock()
        self.progress.completion_tokens += 1
        self.progress.last_token_at = now
        if self.progress.first_token_at is None:
            self.progress.first_token_at = now
            self._tell("first token", "")


class _Uncached(Exception):
    """A node on the route does not cache."""
