"""One step of one generation: tokens through every hop of a route. Knows nothing of repair, waiting or text."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from generation.directory import NodeDirectory
from generation.handover import HandingOver
from generation.job import HopTimes, Job, LoopSettings, Progress
from generation.pipeline import Pipeline
from generation.route import Hop, Route
from generation.threads import Threads
from nodes.client import StepAnswer
from nodes.errors import HandoverFailed, MeshnetError, NodeProtocolError
from nodes.payload import Payload
from nodes.sampling_parameters import TokenLogprobs
from nodes.wire import StepHeaders

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

#: A step may take so many times as long as was measured before its node is asked whether it lives.
PATIENCE_FACTOR = 4.0


class Embeds(Protocol):
    """Token ids to the hidden states before layer 0, [1, T, hidden]."""

    def embed(self, token_ids: list[int]) -> torch.Tensor: ...


class Uncached(Exception):
    """A node on the route does not cache."""


@dataclass(frozen=True)
class _Piece:
    """Some tokens on their way: hidden states behind the hops that they have passed, and at last the new ids."""

    ids: list[int]
    past_len: int
    fresh: bool
    want_token: bool
    hidden: torch.Tensor | None = None
    new: list[int] = field(default_factory=list)


class Steps:
    """Sends one job's steps, and notes in its progress where the time went. Used by the loop's thread alone."""

    def __init__(
        self,
        directory: NodeDirectory,
        embedder: Embeds,
        settings: LoopSettings,
        job: Job,
        progress: Progress,
        clock: Callable[[], float] = time.monotonic,
        threads: Threads | None = None,
    ) -> None:
        self._directory = directory
        self._embedder = embedder
        self._settings = settings
        self._job = job
        self._progress = progress
        self._clock = clock
        self._threads = threads
        self._handing_over = HandingOver(directory, settings, progress, clock)
        #: Of the token that was chosen last, if they were asked for and the tail knows them.
        self.logprobs: TokenLogprobs | None = None

    def run(self, route: Route, ids: list[int], *, past_len: int, fresh: bool, want_token: bool) -> list[int]:
        """Tokens through every hop; the new ids (none when none is wanted).

        `fresh` starts the sessions anew, else they must hold `past_len` tokens. Raises what a node raised, with the
        node's URL in it, NodeProtocolError for answers that cannot be right, and Uncached when a cached step was not
        acknowledged.
        """
        boot_ids = self._handing_over.boot_ids(route) if want_token and not fresh else None
        if boot_ids is not None:
            return self._hand_over(route, boot_ids, ids, past_len)
        piece = _Piece(ids, past_len, fresh, want_token)
        for hop in route.hops:
            piece = self._through(route, hop, piece)
        return piece.new

    def run_pieces(
        self, route: Route, pieces: Iterable[list[int]], total: int, passed: Callable[[], None]
    ) -> list[int]:
        """A prompt of `total` tokens in pieces, which follow each other from hop to hop without waiting for the tail.

        `passed` is called after each piece that went through every hop, maybe on another thread. Returns and raises
        as `run`; pieces may end early, and then there is no new id.
        """
        new: list[int] = []

        def told(piece: _Piece) -> None:
            new[:] = piece.new
            passed()

        stages = [partial(self._through, route, hop) for hop in route.hops]
        Pipeline(stages, threads=self._threads).run(_pieces(pieces, total), told)
        return new

    def close(self) -> None:
        """The job is over."""
        self._handing_over.close()

    def _hand_over(self, route: Route, boot_ids: list[str], ids: list[int], past_len: int) -> list[int]:
        """One step that the nodes hand over to each other."""
        headers = self._headers(route.hops[0], route, past_len, fresh=False)
        payload = Payload(self._embedder.embed(ids), self._history(ids), self._sampling(want_token=True))
        letter = self._handing_over.run(route, boot_ids, headers, payload, lambda hop: self._patience(hop, len(ids)))
        self.logprobs = letter.logprobs
        with _blaming(route.hops[-1]):
            return self._new_tokens(route.hops[-1], StepAnswer(token_id=letter.token_id, has_token_id=True))

    def _through(self, route: Route, hop: Hop, piece: _Piece) -> _Piece:
        """One piece through one hop."""
        ids, hidden = piece.ids, piece.hidden
        if hidden is None:
            hidden = self._embedder.embed(ids)
        headers = self._headers(hop, route, piece.past_len, piece.fresh)
        held = piece.past_len + len(ids)
        with _blaming(hop):
            if hop is not route.hops[-1]:
                answer = self._send(hop, headers, Payload(hidden))
                if answer.hidden is None or answer.hidden.shape != hidden.shape:
                    raise NodeProtocolError(f"{hop.url} did not answer hidden states of the shape it was sent.")
                self._check_acknowledgement(hop, answer, held)
                return replace(piece, hidden=answer.hidden)
            answer = self._send(hop, headers, Payload(hidden, self._history(ids), self._sampling(piece.want_token)))
            if answer.hidden is not None:
                raise NodeProtocolError(f"{hop.url} answered hidden states instead of a token.")
            self._check_acknowledgement(hop, answer, held)
            self.logprobs = answer.logprobs
            return replace(piece, hidden=None, new=self._new_tokens(hop, answer) if piece.want_token else [])

    def _send(self, hop: Hop, headers: StepHeaders, payload: Payload) -> StepAnswer:
        self._progress.touched.add(hop.url)
        tokens = payload.hidden.shape[1]
        begun = self._clock()
        try:
            answer = self._directory.client(hop.url).forward(
                headers,
                payload,
                timeout=self._settings.step_timeout,
                patience=self._patience(hop, tokens),
            )
        except HandoverFailed as error:
            raise NodeProtocolError(f"{hop.url} was not asked to hand over: {error.detail}") from None
        total_ms = (self._clock() - begun) * 1e3
        self._directory.measured(hop.url, hop.layers.size, tokens, total_ms, answer.timings)
        self._progress.hops.setdefault(hop.url, HopTimes()).add(total_ms, answer.timings)
        return answer

    def _patience(self, hop: Hop, tokens: int) -> float:
        expected = self._directory.expected_seconds(hop.url, hop.layers.size, tokens)
        return max(self._settings.step_patience, PATIENCE_FACTOR * expected)

    def _history(self, ids: list[int]) -> torch.Tensor | None:
        if not self._job.sampling.needs_history:
            return None
        import torch  # here, so that a simulation of many heads drives this loop without it

        return torch.tensor([ids])

    def _headers(self, hop: Hop, route: Route, past_len: int, fresh: bool) -> StepHeaders:
        cached = self._progress.cached
        return StepHeaders(
            session=self._job.session_id if cached else None,
            cache=("prefill" if fresh else "decode") if cached else None,
            past_len=past_len if cached and not fresh else None,
            start_layer=hop.layers.start,
            end_layer=hop.layers.end,
            model=route.fingerprint,
        )

    def _check_acknowledgement(self, hop: Hop, answer: StepAnswer, tokens: int) -> None:
        """The acknowledgement is the capability check: a node that does not send it has cached nothing, and a decode
        to it would be silent nonsense.
        """
        if not self._progress.cached:
            return
        if answer.past_len is None:
            logger.warning("%s does not cache; the generation goes on without a cache.", hop.url)
            raise Uncached()
        if answer.past_len != tokens:
            raise NodeProtocolError(f"{hop.url} holds {answer.past_len} tokens where {tokens} were sent.")

    def _sampling(self, want_token: bool) -> dict[str, object] | None:
        params = self._job.sampling
        if not want_token:
            return {"want_token": False}
        if params.temperature == 0 and not params.changes_logits and params.logprobs is None:
            return None
        return params.as_json()

    def _new_tokens(self, tail: Hop, answer: StepAnswer) -> list[int]:
        if answer.token_id is not None:
            if not 0 <= answer.token_id < self._settings.vocab_size:
                raise NodeProtocolError(f"{tail.url} answered a token that the model does not have.")
            return [answer.token_id]
        if answer.has_token_id or self._job.encode is None or answer.text is None:
            raise NodeProtocolError(f"{tail.url} answered no token.")
        # A tail of the old protocol: text only, and an empty text at the end.
        if self._progress.cached:
            raise Uncached()
        return self._job.encode(answer.text)


@contextmanager
def _blaming(hop: Hop) -> Iterator[None]:
    """Notes on an error which node it is about."""
    try:
        yield
    except MeshnetError as error:
        error.node = hop.url
        raise


def _pieces(pieces: Iterable[list[int]], total: int) -> Iterator[_Piece]:
    past_len = 0
    for ids in pieces:
        yield _Piece(ids, past_len, fresh=past_len == 0, want_token=past_len + len(ids) >= total)
        past_len += len(ids)
