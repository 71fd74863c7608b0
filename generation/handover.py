"""Decode steps that the nodes of a route hand over to each other, so that each costs one trip less per node.

The head sends a step to the first node, and waits at the tail for the result. The nodes' answers to each other run
back along the chain; that of the first node says that all is well, or what went wrong and where. The result comes
before it, and the next step does not wait for it. Knows nothing of repair: whatever goes wrong is raised, and the loop
prefills again, through the head.
"""

from __future__ import annotations

import logging
import queue
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, cast

from generation.directory import NodeDirectory
from generation.errands import Errands
from generation.job import HopTimes, LoopSettings, Progress
from generation.route import Hop, Route
from nodes.client import NodeClient, StepAnswer
from nodes.errors import (
    BadRequest,
    HandoverFailed,
    MeshnetError,
    MethodNotAllowed,
    NodeProtocolError,
    NodeTimeout,
    NotFound,
    UnsupportedMediaType,
)
from nodes.handover import HandOver, Letter, NextHop
from nodes.payload import Payload
from nodes.wire import StepHeaders, Timings

logger = logging.getLogger(__name__)

#: How long one request waits at the tail before it asks anew.
WAIT_SECONDS = 10.0
#: How long the result may be missing once all nodes have done their part.
LATE_SECONDS = 5.0
#: Who hears at once that there is no result asks again no sooner.
AGAIN_SECONDS = 0.1
#: After so many links that failed a generation is relayed to its end: each costs it a prefill, and one of a long text
#: may take longer than a link is left alone.
MOST_FAILURES = 3
#: What a node, or one of another version, does not understand of a step that is handed over: relaying may do.
_NOT_UNDERSTOOD = (BadRequest, NotFound, MethodNotAllowed, UnsupportedMediaType)


class HandsOver(NodeClient, Protocol):
    """A client of a node that can be the tail of steps that are handed over."""

    def hand_over(
        self,
        headers: StepHeaders,
        payload: Payload,
        *,
        timeout: float,
        patience: float | None = None,
        sent: Callable[[], object],
    ) -> StepAnswer: ...

    def result(
        self, session_id: str, nonce: str, *, wait: float, timeout: float, patience: float | None = None
    ) -> Letter | None: ...


@dataclass
class _Waiting:
    """What comes in for one step; both errands of it write, the loop reads. `over`: nobody reads any more."""

    news: queue.SimpleQueue[Letter | Exception | None] = field(default_factory=queue.SimpleQueue)
    over: bool = False


class HandingOver:
    """Sends one job's decode steps from node to node. Used by the loop's thread alone."""

    def __init__(
        self,
        directory: NodeDirectory,
        settings: LoopSettings,
        progress: Progress,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        self._directory = directory
        self._wait = wait
        self._settings = settings
        self._progress = progress
        self._clock = clock
        self._failures = 0
        self._errands = Errands("meshnet-handover")

    def boot_ids(self, route: Route) -> list[str] | None:
        """Of the route's nodes, when the next step may be handed over along it; else None."""
        if not self._settings.handover or not self._progress.cached or len(route.hops) < 2:
            return None
        if self._failures >= MOST_FAILURES:
            return None
        return self._directory.hand_over([hop.url for hop in route.hops])

    def run(
        self,
        route: Route,
        boot_ids: list[str],
        headers: StepHeaders,
        payload: Payload,
        patience: Callable[[Hop], float],
    ) -> Letter:
        """One cached step through every node; `headers` are those for the first one.

        Raises what a node raised, `node` being the one that is to blame, or HandoverFailed when two nodes do not
        reach each other: then steps between them are relayed for a while. Acknowledgements are checked.
        """
        assert headers.session is not None and headers.past_len is not None  # noqa: S101  # a cached decode
        tail = route.hops[-1]
        seconds = self._settings.step_timeout
        rest = tuple(
            NextHop(hop.url, boot_id, hop.layers, seconds * (len(route.hops) - place), patience(hop))
            for place, (hop, boot_id) in enumerate(zip(route.hops, boot_ids, strict=True))
        )
        handover = HandOver(secrets.token_urlsafe(12), boot_ids[0], rest[1:])
        self._progress.touched.update(hop.url for hop in route.hops)
        waiting = _Waiting()
        begun = self._clock()
        sent = partial(self._fetch, waiting, tail, str(headers.session), handover.nonce, rest[0], rest[-1])
        step = replace(payload, handover=handover.as_json())
        try:
            self._errands.send(partial(self._send, waiting, rest[0], headers, step, lambda: self._errands.send(sent)))
            letter = self._await(waiting, tail, rest[0].timeout + LATE_SECONDS)
            self._check(route, letter, headers.past_len + payload.hidden.shape[1])
        except MeshnetError as error:
            blamed = self._blamed(route, error)
            self._failures += isinstance(blamed, HandoverFailed)
            raise blamed from None
        finally:
            waiting.over = True
        self._note(route, payload.hidden.shape[1], (self._clock() - begun) * 1e3, letter)
        return letter

    def close(self) -> None:
        """The job is over."""
        self._errands.close()

    # -- on the errands' threads

    def _send(
        self,
        waiting: _Waiting,
        first: NextHop,
        headers: StepHeaders,
        payload: Payload,
        sent: Callable[[], None],
    ) -> None:
        try:
            client = cast(HandsOver, self._directory.client(first.url))
            client.hand_over(headers, payload, timeout=first.timeout, patience=first.patience, sent=sent)
        except MeshnetError as error:
            error.node = error.extra.pop("node", None) or first.url
            if waiting.over:
                logger.info("Too late for anyone to hear: %s", error.detail)
            waiting.news.put(error)
        except Exception as error:  # raised on the loop's thread
            waiting.news.put(error)
        else:
            waiting.news.put(None)

    def _fetch(self, waiting: _Waiting, tail: Hop, session_id: str, nonce: str, first: NextHop, last: NextHop) -> None:
        try:
            client = cast(HandsOver, self._directory.client(tail.url))
            while not waiting.over:
                asked_at = self._clock()
                letter = client.result(
                    session_id, nonce, wait=WAIT_SECONDS, timeout=first.timeout, patience=last.patience
                )
                if letter is not None:
                    waiting.news.put(letter)
                    return
                if self._clock() - asked_at < AGAIN_SECONDS:
                    self._wait(AGAIN_SECONDS)  # the step has failed there; it is told through the nodes before
        except MeshnetError as error:
            error.node = tail.url
            waiting.news.put(error)
        except Exception as error:
            waiting.news.put(error)

    # -- on the loop's thread

    @staticmethod
    def _await(waiting: _Waiting, tail: Hop, seconds: float) -> Letter:
        """The result, or the first thing that goes wrong."""
        while True:
            try:
                news = waiting.news.get(timeout=seconds)
            except queue.Empty:
                error = NodeTimeout(f"{tail.url} did not give the result of a step.")
                error.node = tail.url
                raise error from None
            if isinstance(news, Exception):
                raise news
            if news is not None:
                return news
            seconds = LATE_SECONDS

    @staticmethod
    def _check(route: Route, letter: Letter, tokens: int) -> None:
        """As for relayed steps: an acknowledgement that is not what it must be is a broken answer."""
        if len(letter.hops) != len(route.hops):
            error = NodeProtocolError(f"{len(letter.hops)} nodes ran a step that {len(route.hops)} were sent.")
            error.node = route.hops[-1].url
            raise error
        for hop, passed in zip(route.hops, letter.hops, strict=True):
            if passed.held != tokens:
                error = NodeProtocolError(f"{hop.url} holds {passed.held} tokens where {tokens} were sent.")
                error.node = hop.url
                raise error

    def _blamed(self, route: Route, error: MeshnetError) -> MeshnetError:
        """The error with the node that it is about; what is a matter of two nodes is remembered of them."""
        urls = [hop.url for hop in route.hops]
        to = error.extra.get("to")
        if error.node not in urls:
            error.node = urls[0]
        if isinstance(error, (HandoverFailed, *_NOT_UNDERSTOOD)):
            to = to if to in urls else error.node
            failed = HandoverFailed(error.detail, to=to)
            failed.node = error.node
            self._directory.hand_over_failed(urls, str(to))
            return failed
        if isinstance(error, NodeTimeout) and error.node != urls[0]:
            # Whether the node hangs, or what lies between it and the one before: that one could not tell.
            self._directory.hand_over_failed(urls, error.node or "")
        return error

    def _note(self, route: Route, tokens: int, total_ms: float, letter: Letter) -> None:
        """Where the time went. Of the way only the whole is known: every node gets an equal share."""
        busy = sum(passed.timings.compute_ms + passed.timings.queue_ms for passed in letter.hops)
        share = max(0.0, total_ms - busy) / len(route.hops)
        for hop, passed in zip(route.hops, letter.hops, strict=True):
            timings: Timings = passed.timings
            hop_ms = share + timings.compute_ms + timings.queue_ms
            self._directory.measured(hop.url, hop.layers.size, tokens, hop_ms, timings)
            self._progress.hops.setdefault(hop.url, HopTimes()).add(hop_ms, timings)
        self._directory.handed_over([hop.url for hop in route.hops])
