"""The autoregressive loop: prefill the prompt once, then one token a step, and repair what breaks.

Knows neither HTTP nor the database nor text: token ids in, token ids out. Nodes, embeddings, clock, waiting and the
way to release sessions are passed in.

A step that fails is never sent again (it may have been carried out): the whole text so far is prefilled anew under
the same session id, which replaces whatever the nodes hold, and the loop goes on with cached steps.

1. A cache miss: the same route is prefilled again.
2. A fault of a node: it is avoided for a while, a new route is planned and prefilled.
3. A node that has changed, leaves, or cannot take this text: a new route, and nothing is held against it.
4. Every slot is taken: a route over other nodes, if there is one with free slots; else the generation stands in line.
5. No route: it waits for the layers to come back, if it has begun.
6. Two nodes that cannot hand over to each other: the same route, with the head between them for a while.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace

from generation.directory import NodeDirectory
from generation.errors import GaveUp, NoRoute, TookTooLong
from generation.job import Job, LoopSettings, Progress
from generation.route import Route, RouteNode, plan
from generation.steps import Embeds, Steps, Uncached
from generation.threads import Threads
from generation.waiting_line import WaitingLine
from nodes.errors import (
    Busy,
    ComputeFailed,
    Draining,
    HandoverFailed,
    KVCacheMiss,
    MeshnetError,
    NodeProtocolError,
    NodeUnreachable,
    NotReady,
    PayloadTooLarge,
    Released,
    Unauthorized,
    WrongLayers,
    WrongModel,
)
from nodes.sampling_parameters import TokenLogprobs

logger = logging.getLogger(__name__)

#: How often those who stand in line look whether it is their turn.
LINE_SECONDS = 0.1
#: How long the first in line leaves the nodes alone, whatever they suggest.
LONGEST_PAUSE_SECONDS = 2.0
#: A node that does not take a slot back in time frees it by itself, once the session is no longer active.
GIVE_BACK_SECONDS = 5.0
#: A time line is for people: it ends after so many events.
MOST_EVENTS = 200
#: Lost caches in a row without a new token before the generation is given up.
MAX_MISSES = 3
#: New routes in a row without a new token before it is given up. Several nodes may go at once, and those that stand in.
MAX_FAILOVERS = 8
#: Faults of the node's own, for which it is avoided for a while.
_NODE_FAULTS = (NodeUnreachable, NodeProtocolError, ComputeFailed, Unauthorized)
#: Faults of the plan: the node is well, but not (any more) what the route took it for.
_ROUTE_FAULTS = (Draining, NotReady, WrongModel, WrongLayers)
#: The node cannot serve this generation, and can serve others.
_UNFIT = (Released, PayloadTooLarge)


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
        threads: Threads | None = None,
    ) -> None:
        self._directory = directory
        self._settings = settings
        self._job = job
        self._line = WaitingLine() if line is None else line
        self._stopped = stopped
        self._admitted = admitted
        self._clock = clock
        self._wait = wait
        self._rng = rng or random.Random()  # noqa: S311  # spreads load; nothing secret
        self._has_prefilled = False
        self._misses = self._failovers = 0  # in a row
        self._give_up_at: float | None = None
        self._unfit: set[str] = set()
        self._taken: Route | None = None  # counted by the directory as this generation's
        self.progress = Progress(started=clock(), cached=job.cache)
        self._steps = Steps(directory, embedder, settings, job, self.progress, lambda: self._clock(), threads)

    @property
    def session_id(self) -> str:
        return self._job.session_id

    @property
    def logprobs(self) -> TokenLogprobs | None:
        """Of the token that `tokens` gave last, if they were asked for."""
        return self._steps.logprobs

    def arrive(self) -> None:
        """Takes a place behind those who wait already, so that they are served in the order in which they came.

        For whoever runs the loop on another thread later; `tokens` does it otherwise. `withdraw` undoes it.
        """
        self._line.enter_behind(self)

    def withdraw(self) -> None:
        """Leaves the line: the loop will not run, or has ended."""
        self._line.leave(self)

    def tokens(self) -> Generator[int, None, None]:
        """The new token ids, one by one; ends at a stop id, at the limit, or when `stopped()` says so.

        Raises NoRoute, Busy (no slot in time), GaveUp or TookTooLong. The session is still held when it returns or
        raises: the caller releases it on the nodes of `progress.touched`.
        """
        try:
            yield from self._tokens()
        finally:
            self._line.leave(self)
            self._let_go()
            self._steps.close()

    def _tokens(self) -> Generator[int, None, None]:
        job, progress = self._job, self.progress
        text = list(job.prompt_ids)
        must_prefill = True
        if not self._line.is_first(self):
            self._wait_for_turn(Busy())  # others came first
        while not self._stopped():
            if self._clock() - progress.started > self._settings.longest:
                raise TookTooLong(f"The generation took longer than {self._settings.longest:g} s.")
            try:
                new = self._prefill(text) if must_prefill or not progress.cached else self._decode(text)
            except Uncached:
                progress.cached = False
                self._give_back()
                continue
            except MeshnetError as error:
                self._repair(error)
                must_prefill = True
                continue
            if new is None:
                return  # stopped between two pieces of the prompt
            if must_prefill and progress.completion_tokens:
                self._tell("decode", "")  # the end of a re-prefill, as the first token is that of the prefill
            must_prefill, self._misses, self._failovers, self._give_up_at = False, 0, 0, None
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

    def _prefill(self, text: list[int]) -> list[int] | None:
        """The whole text through the route, in pieces when it is cached; None when stopped on the way."""
        route = self.progress.route or self._plan()
        self._tell("prefill" if self.progress.prefills == 0 else "re-prefill", f"{len(text)} tokens")
        self.progress.prefills += 1
        size = self._settings.piece_tokens if self.progress.cached else len(text)
        stopped = False

        def pieces() -> Iterator[list[int]]:
            nonlocal stopped
            for start in range(0, len(text), size):
                if start and self._stopped():
                    stopped = True
                    return
                yield text[start : start + size]

        def passed() -> None:
            self._line.leave(self)  # the slots are taken: the next in line may ask
            self._admitted()

        new = self._steps.run_pieces(route, pieces(), len(text), passed)
        if stopped:
            return None
        if self.progress.cached:
            self.progress.reprefills += self._has_prefilled
            self._has_prefilled = True
        return new

    def _decode(self, text: list[int]) -> list[int]:
        """The newest token alone through the route."""
        route = self.progress.route or self._plan()
        return self._steps.run(route, text[-1:], past_len=len(text) - 1, fresh=False, want_token=True)

    # -- what changes around the steps

    def _plan(self) -> Route:
        try:
            route = self._plan_on(self._directory.ready())
        except NoRoute:
            # What is known may be seconds old, and a node may have come back since.
            route = self._plan_on(self._directory.ready(fresh=True))
        self._directory.take(route)
        self._taken = self.progress.route = route
        return route

    def _plan_on(self, nodes: Sequence[RouteNode]) -> Route:
        return plan(
            [replace(node, faults=node.faults + 1) if node.url in self._unfit else node for node in nodes],
            fingerprint=self._settings.fingerprint,
            dtype=self._settings.dtype,
            n_layers=self._settings.n_layers,
            context_length=self._settings.context_length,
            prefer=self._rng.choice,
        )

    def _leave_route(self) -> None:
        """The next step plans anew."""
        self._let_go()
        self.progress.route = None

    def _let_go(self) -> None:
        if self._taken is not None:
            self._directory.leave(self._taken)
            self._taken = None

    # -- repair

    def _repair(self, error: MeshnetError) -> None:
        """Makes the next prefill possible: waits, plans anew, or raises what cannot be repaired."""
        if isinstance(error, Busy):
            self._find_slots(error)
        elif isinstance(error, NoRoute):
            # Layers are gone for a moment, in the middle of an answer. Who has got nothing yet, and has not waited for
            # slots either, is told at once.
            if not self.progress.completion_tokens and self._give_up_at is None:
                raise error
            self._wait_for_turn(error)
        elif isinstance(error, KVCacheMiss):
            self.progress.cache_misses += 1
            self._misses += 1
            self._tell("cache miss", f"{error.extra.get('reason')} on {error.node}")
            logger.info("%s…: cache miss (%s); prefilling again.", self.session_id[:8], error.extra.get("reason"))
            if self._misses > MAX_MISSES:
                raise GaveUp(f"The cache was lost {self._misses} times in a row: {error.detail}") from error
        elif isinstance(error, HandoverFailed):
            # Two nodes that do not reach each other are no fault of either. The head goes between them from here on;
            # if one of them is gone, it meets that at once.
            self._tell("relayed", f"no hand-over to {error.extra.get('to')}")
            logger.warning("%s…: the head goes between nodes after: %s", self.session_id[:8], error.detail)
        elif isinstance(error, (*_NODE_FAULTS, *_ROUTE_FAULTS, *_UNFIT)):
            self._fail_over(error)
        else:
            raise error

    def _fail_over(self, error: MeshnetError) -> None:
        node = error.node
        if node is not None:
            if isinstance(error, _UNFIT):
                if node in self._unfit:
                    raise error  # and no other way was found since
                self._unfit.add(node)
            elif isinstance(error, _NODE_FAULTS):
                self._directory.failed(node)
            else:
                self._directory.forget(node)
        self.progress.failovers += 1
        self._failovers += 1
        self._tell("failover", f"{error.code} on {node}")
        logger.warning("%s…: planning again after: %s", self.session_id[:8], error.detail)
        self._leave_route()
        if self._failovers > MAX_FAILOVERS:
            raise GaveUp(f"No new token after {self._failovers} routes; the last fault was: {error.detail}") from error

    def _find_slots(self, error: Busy) -> None:
        """Another route that has free slots; else waits in line until the nodes may be asked again."""
        if error.node is not None:
            self._directory.full(error.node)
        self._leave_route()
        try:
            has_slots = not self._plan_on(self._directory.ready()).has_full_node
        except NoRoute:
            has_slots = False
        if has_slots and error.node is not None:
            self._give_back()
        else:
            self._wait_for_turn(error)

    def _wait_for_turn(self, error: Busy | NoRoute) -> None:
        """Waits until those who came before have their slots, and a while before the nodes are asked again.

        What was got on other nodes is given back meanwhile. Returns early when stopped; raises the error when the
        time is over.
        """
        if self._give_up_at is None:
            waits = self._settings.route_wait if isinstance(error, NoRoute) else self._settings.busy_wait
            self._give_up_at = self._clock() + waits
        give_up_at = self._give_up_at
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
        """Frees the session's slots on the nodes touched so far; the id stays this generation's own.

        One that was not heard of since it failed is left for the end: each of a rack that has gone would hold the
        generation up for GIVE_BACK_SECONDS.
        """
        for url in sorted(self.progress.touched):
            if not self._directory.hears(url):
                continue
            self.progress.touched.discard(url)
            try:
                self._directory.client(url).give_back(self._job.session_id, timeout=GIVE_BACK_SECONDS)
            except MeshnetError as error:
                logger.info("%s could not be told to free a slot: %s", url, error.detail)
        self._leave_route()

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
