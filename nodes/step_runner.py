"""Runs steps on a shard and keeps their sessions' caches true. On the engine's thread, under inference mode.

What goes wrong with one step touches no other: what can be told before is refused alone, a result that is not finite
fails its own session alone. Only an exception inside a packed run half-appends every cache in it. Then each prompt that
has just begun starts again, alone, on a fresh cache; sessions that went on from a text are dropped, and answered as
lost, so that their heads prefill them again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

import torch

from nodes import sampling
from nodes.errors import BadRequest, ComputeFailed, KVCacheMiss, MeshnetError
from nodes.framing import is_finite
from nodes.kv_sessions import SessionCacheStore
from nodes.layers import LayerRange
from nodes.packing import Part
from nodes.sampling_parameters import Sampling
from nodes.shard import ModelShard
from nodes.step import Chosen, Step, StepResult
from nodes.wire import Timings

logger = logging.getLogger(__name__)

#: A step and how many of its tokens run now.
Turn = tuple[Step, int]


class StepRunner:
    """Owns nothing: the shard holds the weights, the store the sessions."""

    def __init__(
        self, shard: ModelShard, store: SessionCacheStore, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._shard = shard
        self._store = store
        self._clock = clock

    def run(self, turns: Sequence[Turn]) -> list[Step]:
        """Runs these steps, all of the same layers, together; the steps that have tokens left.

        Every other step's future has its result or its error.
        """
        begun = self._clock()
        ready = [turn for turn in turns if self._begin(turn[0], begun)]
        if not ready:
            return []
        try:
            outputs = self._compute(ready)
        except Exception as error:
            # Whatever a model's code raises is these steps' failure and nothing else's.
            logger.exception("A run of %d steps failed in layers %s.", len(ready), ready[0][0].layers)
            self._failed(ready, error)
            return []
        return [
            step
            for (step, tokens), output in zip(ready, outputs, strict=True)
            if self._ran(step, tokens, output, begun)
        ]

    def run_stateless(
        self, hidden: torch.Tensor, layers: LayerRange, params: Sampling | None, token_ids: torch.Tensor | None
    ) -> StepResult:
        """A whole text without a cache, alone."""
        tokens = hidden.shape[1]
        history: list[int] = [] if token_ids is None else token_ids[0].tolist()
        _check_history(params, history, tokens)
        try:
            if params is None or not params.want_token:
                output = self._shard.forward(hidden, 0, None, layers)
            else:
                output = self._shard.logits(hidden, 0, None, layers)
        except Exception as error:
            logger.exception("A step failed in layers %s.", layers)
            raise _failure(layers, error) from error
        _check_finite(output, layers)
        if params is None:
            return StepResult(tokens, hidden=_plain(output))
        return StepResult(tokens, chosen=_choose(output, params, tokens, history))

    def _begin(self, step: Step, now: float) -> bool:
        """Whether the step may run; else its future has the error."""
        if step.done:
            return True
        step.queue_ms = (now - step.queued_at) * 1e3
        try:
            self._store.begin(step.entry, step.layers, step.past_len)
            if step.token_ids is not None and len(step.cache.history) == (step.past_len or 0):
                step.cache.history.extend(step.token_ids[0].tolist())
            total = (step.past_len or 0) + step.tokens
            _check_history(step.params, step.cache.history, total)
        except MeshnetError as error:
            if isinstance(error, BadRequest):
                self._store.fail(step.entry)  # its ids are not those of its cache any more
            step.future.set_exception(error)
            return False
        return True

    def _compute(self, turns: Sequence[Turn]) -> list[torch.Tensor | None]:
        """Hidden states of an inner stretch, or logits [vocabulary] where a token is wanted now, else None."""
        layers, ends = turns[0][0].layers, turns[0][0].params is not None
        wanted = [step.wants_token and tokens == step.left for step, tokens in turns]
        if len(turns) == 1:
            (step, tokens), (want,) = turns[0], wanted
            run = self._shard.logits if want else self._shard.forward
            output = run(step.next(tokens), step.position, step.cache, layers)
            return [output if want or not ends else None]
        parts = [Part(step.next(tokens), step.position, step.cache) for step, tokens in turns]
        if ends:
            return self._shard.logits_packed(parts, wanted, layers)
        return list(self._shard.forward_packed(parts, layers))

    def _ran(self, step: Step, tokens: int, output: torch.Tensor | None, begun: float) -> bool:
        """Takes over what a run that began then gave the step; whether it has tokens left."""
        step.done += tokens
        try:
            if output is not None:
                _check_finite(output, step.layers)
                if step.params is None:
                    step.outputs.append(output)
            if step.left:
                self._count(step, begun)
                return True
            held = self._store.commit(step.entry)
            step.future.set_result(self._result(step, output, held, begun))
        except BaseException as error:
            self._store.fail(step.entry)
            step.future.set_exception(error)
        return False

    def _result(self, step: Step, output: torch.Tensor | None, held: int, begun: float) -> StepResult:
        hidden, chosen = None, None
        if step.params is None:
            hidden = _plain(step.outputs[0] if len(step.outputs) == 1 else torch.cat(step.outputs, dim=1))
        else:
            chosen = Chosen() if output is None else _choose(output, step.params, held, step.cache.history)
        self._count(step, begun)  # choosing a token is computing too
        return StepResult(held, hidden=hidden, chosen=chosen, timings=Timings(step.queue_ms, step.compute_ms))

    def _count(self, step: Step, begun: float) -> None:
        step.compute_ms += (self._clock() - begun) * 1e3

    def _failed(self, turns: Sequence[Turn], error: Exception) -> None:
        """An exception inside a run: no cache in it can be believed."""
        for step, _ in turns:
            if len(turns) > 1 and step.past_len is None:
                step.restart()
                step.entry.cache = self._shard.new_cache(step.layers)
                if step.token_ids is not None:
                    step.cache.history.extend(step.token_ids[0].tolist())
                for left in self._alone(step):
                    left.future.set_exception(_failure(step.layers, error))
                continue
            self._store.fail(step.entry)
            if len(turns) > 1:
                expected = step.past_len or 0
                step.future.set_exception(
                    KVCacheMiss(
                        "The session's cache was lost with a step that failed beside it; prefill again.",
                        reason="unknown_session",
                        expected=expected,
                        held=0,
                    )
                )
            else:
                step.future.set_exception(_failure(step.layers, error))

    def _alone(self, step: Step) -> list[Step]:
        """Runs a prompt to its end by itself."""
        begun = self._clock()
        try:
            (output,) = self._compute([(step, step.left)])
        except Exception as error:
            logger.exception("A step failed in layers %s.", step.layers)
            self._failed([(step, step.left)], error)
            return []
        return [step] if self._ran(step, step.left, output, begun) else []


def _choose(logits: torch.Tensor, params: Sampling, position: int, history: Sequence[int]) -> Chosen:
    if not params.want_token:
        return Chosen()
    logits = logits.cpu()
    token_id = sampling.choose(logits, params, position, history)
    if params.logprobs is None:
        return Chosen(token_id)
    return Chosen(token_id, sampling.logprobs_of(logits, token_id, params.logprobs))


def _check_history(params: Sampling | None, history: Sequence[int], total: int) -> None:
    if params is not None and params.want_token and params.needs_history and len(history) != total:
        raise BadRequest("Penalties need the token_ids of every step of the text.")


def _check_finite(output: torch.Tensor, layers: LayerRange) -> None:
    if not is_finite(output.cpu()):
        raise ComputeFailed(f"The layers {layers} produced NaN or infinite values.")


def _plain(output: torch.Tensor) -> torch.Tensor:
    """A plain copy, made on the engine's thread: inference tensors stay on it, and a copy of a long prompt made on an
    HTTP thread would start an OpenMP pool there.
    """
    found = output.cpu()
    # numpy's copy: a step of one token waits half as long for it as for a clone by torch.
    bits = (found.view(torch.int16) if found.dtype == torch.bfloat16 else found).numpy().copy()
    with torch.inference_mode(mode=False):
        return torch.from_numpy(bits).view(output.dtype)


def _failure(layers: LayerRange, error: Exception) -> ComputeFailed:
    return ComputeFailed(f"The layers {layers} failed: {type(error).__name__}.")
