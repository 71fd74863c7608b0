"""A running node: one shard, its session store, its engine and the sweeper. The one way in for views and for a head
in the same process.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from nodes import framing, proof
from nodes.batching import Budget
from nodes.client import NodeClient, StepAnswer
from nodes.engine import Engine
from nodes.engine_embedder import EngineEmbedder
from nodes.errors import BadRequest, Busy, Draining, MeshnetError, NotFound, WrongLayers, WrongModel
from nodes.handing_over import HandingOver
from nodes.kv_sessions import SessionCacheStore
from nodes.layers import LayerRange
from nodes.limits import HELD_PER_SLOT, changed_limits
from nodes.payload import Payload
from nodes.process import resident_bytes, versions
from nodes.sampling_parameters import Sampling
from nodes.shard import Embedder, ModelShard
from nodes.step import Step, StepResult
from nodes.step_queue import StepQueue
from nodes.step_runner import StepRunner
from nodes.step_statistics import StepStatistics
from nodes.successors import Successors
from nodes.wire import StepHeaders, Timings

logger = logging.getLogger(__name__)

#: What a body may hold besides hidden states: token ids, sampling parameters, the buffer's own header.
BODY_SLACK_BYTES = 1024 * 1024


@dataclass(frozen=True)
class Identity:
    """What a node says of itself. boot_id is new at every start."""

    model: str
    fingerprint: str
    boot_id: str


class NodeRuntime:
    """Serves the layers of one shard. Every method may be called from any thread.

    decode_text turns one token id into advisory text on the tail; it may be called from any thread.
    """

    def __init__(
        self,
        shard: ModelShard,
        store: SessionCacheStore,
        engine: Engine,
        identity: Identity,
        verdict: proof.Verdict,
        *,
        kv_enabled: bool = True,
        sweep_seconds: float = 1.0,
        decode_text: Callable[[int], str] | None = None,
        budget: Budget | None = None,
        connect: Callable[[str], NodeClient] | None = None,
    ) -> None:
        """`connect` is how this node speaks to others; without it steps cannot be handed over to or from here."""
        self._shard = shard
        self._dtype = shard.dtype  # asking the model walks over its modules, and each step would
        #: The largest body of a legal step.
        self.max_body_bytes = BODY_SLACK_BYTES + shard.shape.context_length * (
            shard.shape.hidden_size * self._dtype.itemsize + 8
        )
        self._store = store
        self._engine = engine
        self.identity = identity
        self._verdict = verdict
        self._caches = kv_enabled and verdict.supports_kv_cache
        self._decode_text = decode_text or (lambda token_id: "")
        # Each of them holds a thread of the server: cached steps, probes and evictions must find one too.
        self._stateless_slots = threading.BoundedSemaphore(store.limits.max_sessions)
        # So do steps that wait for the nodes behind this one, while the next of their session may be here already.
        self._handing_over = connect and HandingOver(Successors(connect), HELD_PER_SLOT * store.limits.max_sessions)
        self._statistics = StepStatistics()
        self._runner = StepRunner(shard, store)
        self._steps = StepQueue(engine, self._runner, budget=budget, counted=self._statistics.count_turn)
        self._started_at = time.time()
        # The server has threads for twice the slots that it was started with.
        self._most_sessions = 2 * store.limits.max_sessions
        self._draining = threading.Event()
        self._leaving = threading.Event()
        #: Called on whatever thread drains or undrains the node; must return at once.
        self.state_changed: Callable[[], None] = lambda: None
        self._stopped = threading.Event()
        self._sweeper = threading.Thread(target=self._sweep, args=(sweep_seconds,), name="meshnet-sweeper", daemon=True)
        self._sweeper.start()

    # -- steps

    def forward(self, headers: StepHeaders, payload: Payload) -> StepAnswer:
        """Runs one step and waits for it. Raises MeshnetError subclasses; an error changes no other session."""
        try:
            answer = self._forward(headers, payload)
        except MeshnetError as error:
            self._statistics.fail(error)
            raise
        mode = "stateless" if answer.past_len is None else str(headers.cache)
        start = self._shard.layers.start if headers.start_layer is None else headers.start_layer
        end = self._shard.layers.end if headers.end_layer is None else headers.end_layer
        self._statistics.count(mode, payload.hidden.shape[1], answer.timings, end - start)
        return answer

    def _forward(self, headers: StepHeaders, payload: Payload) -> StepAnswer:
        layers = self._check(headers, payload)
        params = self._sampling(payload, layers)
        if headers.cache is None or not self._caches:
            return self._stateless(headers, payload, layers, params)
        if headers.session is None:
            raise BadRequest("A cached step needs a session.")
        tokens = payload.hidden.shape[1]
        held = headers.past_len or 0
        need = self._verdict.footprint.bytes(held + tokens) - self._verdict.footprint.bytes(held)
        if headers.cache == "prefill":
            if self._draining.is_set():
                raise Draining()
            self._forget_results(headers.session)
            entry = self._store.open(headers.session, layers, lambda: self._shard.new_cache(layers), need)
        else:
            if self._leaving.is_set():
                raise Draining("This node is leaving now: the answer must go on elsewhere.")
            entry = self._store.take(headers.session, held, need if tokens > 1 else 0)
        try:
            step = Step(entry, layers, payload.hidden, headers.past_len, params, payload.token_ids)
            result = self._steps.submit(step).result()
        finally:
            self._store.done(entry)
        return self._answer(result, past_len=result.held)

    def _stateless(
        self, headers: StepHeaders, payload: Payload, layers: LayerRange, params: Sampling | None
    ) -> StepAnswer:
        """A run that leaves nothing behind; as many as there are threads for them beside the cached steps."""
        if headers.cache == "decode":
            raise self._store.caching_disabled(headers.past_len or 0)
        if self._draining.is_set():
            raise Draining()
        if not self._stateless_slots.acquire(blocking=False):
            raise Busy("Too many stateless steps are waiting already.")
        try:
            timed = self._engine.submit(
                lambda: self._runner.run_stateless(payload.hidden, layers, params, payload.token_ids)
            ).result()
            result = replace(timed.value, timings=Timings(timed.queue_ms, timed.compute_ms))
            return self._answer(result, past_len=None)
        finally:
            self._stateless_slots.release()

    def _answer(self, result: StepResult, past_len: int | None) -> StepAnswer:
        if result.chosen is None:
            return StepAnswer(hidden=result.hidden, past_len=past_len, timings=result.timings)
        token_id = result.chosen.token_id
        return StepAnswer(
            token_id=token_id,
            has_token_id=True,
            text="" if token_id is None else self._decode_text(token_id),
            logprobs=result.chosen.logprobs,
            past_len=past_len,
            timings=result.timings,
        )

    def _check(self, headers: StepHeaders, payload: Payload) -> LayerRange:
        """The layers to run. Raises what is wrong with the request before anything is queued."""
        shape = self._shard.shape
        if headers.model is not None and headers.model != self.identity.fingerprint:
            raise WrongModel(f"This node serves {self.identity.fingerprint}.")
        own = self._shard.layers
        start = own.start if headers.start_layer is None else headers.start_layer
        end = own.end if headers.end_layer is None else headers.end_layer
        layers = LayerRange(start, end)
        if start >= end:
            raise BadRequest(f"Layers {layers} hold no layer.")
        if not own.holds(layers):
            raise WrongLayers(f"This node holds layers {own}, not {layers}.")
        if layers != own and not self._shard.runs_alone(layers):
            raise WrongLayers(f"The layers {layers} reuse keys of layers before {start}: they cannot run alone.")
        hidden = payload.hidden
        if hidden.shape[2] != shape.hidden_size:
            raise BadRequest(f"hidden_states must have {shape.hidden_size} values a token, not {hidden.shape[2]}.")
        if hidden.dtype != self._dtype:
            raise BadRequest(
                f"hidden_states must be {framing.dtype_name(self._dtype)}, not {framing.dtype_name(hidden.dtype)}."
            )
        total = (headers.past_len or 0) + hidden.shape[1]
        if total > shape.context_length:
            raise BadRequest(f"The text would be {total} tokens long; the model takes {shape.context_length}.")
        if payload.token_ids is not None and not self._valid_ids(payload.token_ids):
            raise BadRequest(f"token_ids must lie between 0 and {shape.vocab_size - 1}.")
        return layers

    def _valid_ids(self, token_ids: torch.Tensor) -> bool:
        ids = token_ids.numpy()
        return bool((ids >= 0).all() and (ids < self._shard.shape.vocab_size).all())

    def _sampling(self, payload: Payload, layers: LayerRange) -> Sampling | None:
        """The sampling of a step that ends the model; None for an inner stretch."""
        if layers.end == self._shard.shape.n_layers:
            params = Sampling.from_json(payload.sampling)
            if any(not 0 <= token_id < self._shard.shape.vocab_size for token_id, _ in params.logit_bias):
                raise BadRequest(f"logit_bias must name tokens between 0 and {self._shard.shape.vocab_size - 1}.")
            return params
        if payload.sampling is not None or payload.token_ids is not None:
            raise BadRequest("sampling and token_ids belong to the step that ends the model.")
        return None

    # -- steps that nodes hand over to each other

    @property
    def handing_over(self) -> HandingOver:
        """Raises NotFound on a node that takes no part in it."""
        if self._handing_over is None:
            raise NotFound("This node does not hand steps over.")
        return self._handing_over

    @property
    def n_layers(self) -> int:
        """Of the whole model."""
        return self._shard.shape.n_layers

    def _forget_results(self, session_id: str) -> None:
        if self._handing_over is not None:
            self._handing_over.letters.forget(session_id)

    def on_engine(self, embedder: Embedder) -> EngineEmbedder:
        """The embedder of a head in this process, run where everything else computes."""
        return EngineEmbedder(embedder, self._engine)

    # -- sessions

    def sessions(self) -> dict[str, Any]:
        return {"boot_id": self.identity.boot_id, "layers": str(self._shard.layers), **self._store.snapshot()}

    def release(self, session_id: str) -> bool:
        """The head is done with a session; whether the node still held it."""
        self._forget_results(session_id)
        return self._store.release(session_id)

    def give_back(self, ids: Sequence[str]) -> dict[str, Any]:
        """The head frees slots while it waits for another node; the ids may come again."""
        for session_id in ids:
            self._forget_results(session_id)
        evicted, unknown = self._store.evict(ids, by="released")
        return {"evicted": evicted, "unknown": unknown}

    def evict(
        self,
        *,
        ids: Sequence[str] | None = None,
        idle_longer_than: float | None = None,
        everything: bool = False,
    ) -> dict[str, Any]:
        """An operator's eviction by exactly one of the three. Raises BadRequest otherwise."""
        if (ids is not None) + (idle_longer_than is not None) + everything != 1:
            raise BadRequest("Name exactly one of ids, idle_longer_than and all.")
        if ids is not None:
            evicted, unknown = self._store.evict(ids)
        elif idle_longer_than is not None:
            evicted, unknown = self._store.evict_idle(idle_longer_than), []
        else:
            evicted, unknown = self._store.evict_all(), []
        if evicted:
            logger.info("An operator evicted %d sessions.", len(evicted))
        return {"evicted": evicted, "unknown": unknown}

    def set_limits(self, changes: Any) -> dict[str, Any]:
        """Changes limits until the restart; lowered ones take idle sessions only. Raises BadRequest by field."""
        limits = changed_limits(self._store.limits, changes, most_sessions=self._most_sessions)
        self._store.set_limits(limits)
        logger.info("Limits changed to %s.", limits)
        return limits.as_json()

    # -- the node itself

    @property
    def is_draining(self) -> bool:
        return self._draining.is_set()

    def status(self) -> dict[str, Any]:
        shape = self._shard.shape
        return {
            "model": self.identity.model,
            "fingerprint": self.identity.fingerprint,
            "boot_id": self.identity.boot_id,
            "state": "draining" if self.is_draining else "ready",
            "layers": str(self._shard.layers),
            "start_layer": self._shard.layers.start,
            "end_layer": self._shard.layers.end,
            "n_layers": shape.n_layers,
            "is_tail": self._shard.is_tail,
            "model_type": shape.model_type,
            "hidden_size": shape.hidden_size,
            "vocab_size": shape.vocab_size,
            "context_length": shape.context_length,
            "dtype": framing.dtype_name(self._dtype),
            "device": str(self._shard.device),
            "supports_kv_cache": self._caches,
            "supports_handover": self._caches and self._handing_over is not None,
            "kv_bytes_per_token": self._verdict.footprint.per_token,
            "kv_bytes_of_full_context": self._verdict.footprint.bytes(shape.context_length),
            "busy_sessions": self._store.count_active(),
            "max_sessions": self._store.limits.max_sessions,
            "layer_ms": self._statistics.layer_ms,
            "rss_bytes": resident_bytes(),
            "started_at": self._started_at,
            "work": self._statistics.as_json(),
            "versions": versions(),
        }

    @property
    def is_idle(self) -> bool:
        """Whether no session is held."""
        return self._store.count() == 0

    def wait_idle(self, seconds: float) -> None:
        """Returns when no session is held any more, or after so many seconds."""
        give_up_at = time.monotonic() + seconds
        while not self.is_idle and time.monotonic() < give_up_at:
            self._stopped.wait(0.05)

    def drain(self) -> None:
        """No new sessions from here on; running ones go on."""
        self._draining.set()
        self.state_changed()

    def let_go(self) -> None:
        """Running answers must go on elsewhere from here on: the process is about to end."""
        self.drain()
        self._leaving.set()

    def undrain(self) -> None:
        """New sessions are taken again, unless the node is stopping."""
        if not self._stopped.is_set():
            self._draining.clear()
            self.state_changed()

    def stop(self) -> None:
        """Ends the sweeper and, after what is queued, the engine."""
        self.drain()
        self._stopped.set()
        self._sweeper.join()
        self._engine.stop()

    def _sweep(self, seconds: float) -> None:
        while not self._stopped.wait(seconds):
            try:
                self._store.sweep()
                if self._handing_over is not None:
                    self._handing_over.tidy()
            except Exception:
                # One bad session must not end the expiry of all others (case D08).
                logger.exception("The sweep failed; trying again in %g s.", seconds)
