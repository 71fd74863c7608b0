"""A node without a model: the real session store and the real choice of steps, with a turn's time from a table.

It calls the store in the order in which nodes/runtime.py and nodes/step_runner.py do, which need torch themselves.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from meshsite.simulation.cost import Cost
from meshsite.simulation.virtual_time import VirtualTime
from nodes.batching import Budget, pick
from nodes.errors import ComputeFailed, Draining, MeshnetError, NodeUnreachable
from nodes.kv_sessions import SessionCacheEntry, SessionCacheStore, StoreLimits
from nodes.layers import LayerRange

FINGERPRINT = "simulated"
VOCABULARY = 50_000
CONTEXT_BLOCKS = 1_000_000

#: up: answers. down: its port is closed. silent: nothing comes back, as of a process that hangs or a machine that died.
Life = Literal["up", "down", "silent"]
#: Tokens held after a step, or what went wrong, or None when nobody will ever say; milliseconds queued and computing.
Told = Callable[[int | MeshnetError | None, float, float], object]


def token_of(session_id: str, position: int) -> int:
    """What this session's text has at this place: the same on every node, as with a seed."""
    return zlib.crc32(f"{session_id}/{position}".encode()) % VOCABULARY


class FakeCache:
    """As long as the session; its content is its length."""

    __slots__ = ("_each", "tokens")

    def __init__(self, each: int) -> None:
        self.tokens = 0
        self._each = each

    def nbytes(self) -> int:
        return self.tokens * self._each


@dataclass
class Step:
    """A step that waits or runs here; a `Waiting` for nodes/batching.py."""

    entry: SessionCacheEntry
    layers: LayerRange
    past_len: int | None
    tokens: int
    told: Told
    queued_at: float
    left: int
    begun_at: float | None = None

    @property
    def session_id(self) -> str:
        return self.entry.session_id

    @property
    def is_decode(self) -> bool:
        return self.past_len is not None and self.tokens == 1


class SimulatedNode:
    """One node. `boot` starts another process at the same URL."""

    def __init__(self, url: str, layers: LayerRange, time: VirtualTime, cost: Cost, limits: StoreLimits) -> None:
        self.url = url
        self.layers = layers
        self.life: Life = "up"
        self.is_draining = self.is_leaving = False
        self.boots = 0
        self.n_layers = cost.n_layers
        self.prompt_blocks = 0  # computed, in all
        self._time = time
        self._cost = cost
        self._limits = limits
        self._each = cost.cache_bytes * cost.block_tokens
        self._budget = Budget(alone=max(1, 512 // cost.block_tokens), beside=max(1, 32 // cost.block_tokens))
        self._said: dict[tuple[int, str], dict[str, Any]] = {}
        self.boot()

    def boot(self) -> None:
        self.boots += 1
        self.life, self.is_draining, self.is_leaving = "up", False, False
        self.store = SessionCacheStore(self._limits, clock=self._time.now, wall=self._time.now)
        self._waiting: list[Step] = []
        self._turn: list[Step] | None = None
        self._said.clear()

    def die(self, life: Life) -> None:
        """Every step under way here is lost: at once when the process is gone, unheard of when it is silent."""
        self.life = life
        lost, self._waiting, self._turn = self._waiting, [], None
        for step in lost:
            step.told(NodeUnreachable(f"{self.url} broke off: reset") if life == "down" else None, 0.0, 0.0)

    def ask(
        self,
        session_id: str,
        cache: str,
        layers: LayerRange,
        past_len: int | None,
        blocks: int,
        told: Told,
    ) -> None:
        """A step arrives. Raises what admission raises; else `told` is called once it has run."""
        need = blocks * layers.size * self._each
        if cache == "prefill":
            if self.is_draining:
                raise Draining()
            each = layers.size * self._each
            entry = self.store.open(session_id, layers, lambda: FakeCache(each), need)
        else:
            if self.is_leaving:
                raise Draining("This node is leaving now.")
            entry = self.store.take(session_id, past_len or 0, need if blocks > 1 else 0)
        self._waiting.append(Step(entry, layers, past_len, blocks, told, self._time.now(), blocks))
        if self._turn is None:
            self._begin_turn()

    def status(self) -> dict[str, Any]:
        """As `/status`; one that was said before is said again, since nobody changes it."""
        state = "draining" if self.is_draining else "ready"
        busy = self.store.count_active()
        said = self._said.get((busy, state))
        if said is None:
            said = self._said[busy, state] = {
                "model": FINGERPRINT,
                "fingerprint": FINGERPRINT,
                "boot_id": f"boot-{self.boots}-of-{self.url}",
                "state": state,
                "layers": str(self.layers),
                "start_layer": self.layers.start,
                "end_layer": self.layers.end,
                "n_layers": self._cost.n_layers,
                "context_length": CONTEXT_BLOCKS,
                "dtype": "float32",
                "supports_kv_cache": True,
                "supports_handover": False,
                "busy_sessions": busy,
                "max_sessions": self.store.limits.max_sessions,
                "layer_ms": self._cost.layer_ms * self._cost.block_tokens,
            }
        return said

    # -- the engine

    def _begin_turn(self) -> None:
        answers_run = any(step.is_decode for step in self._waiting)
        turn, decodes, blocks = [], 0, 0
        for place, count in pick(self._waiting, self._budget, answers_run=answers_run):
            step = self._waiting[place]
            if step.begun_at is None:
                step.begun_at = self._time.now()
            if step.is_decode:
                decodes += 1
            else:
                blocks += count
            step.left -= count
            turn.append(step)
        self._turn = turn
        self.prompt_blocks += blocks
        seconds = self._cost.turn_seconds(turn[0].layers.size, decodes, blocks)
        self._time.call_at(self._time.now() + seconds, lambda: self._end_turn(turn))

    def _end_turn(self, turn: list[Step]) -> None:
        if self._turn is not turn:
            return  # of a process that has gone
        self._turn = None
        ended = [step for step in turn if not step.left]
        if ended:
            self._waiting = [step for step in self._waiting if step.left]
        for step in ended:
            self._end(step)
        if self._waiting:
            self._begin_turn()

    def _end(self, step: Step) -> None:
        begun_at = step.queued_at if step.begun_at is None else step.begun_at
        queue_ms, compute_ms = (begun_at - step.queued_at) * 1e3, (self._time.now() - begun_at) * 1e3
        try:
            self.store.begin(step.entry, step.layers, step.past_len)
            if step.entry.cache.tokens != (step.past_len or 0):
                raise ComputeFailed(f"{self.url} holds another text than its store says.")
            step.entry.cache.tokens += step.tokens
            held: int | MeshnetError = self.store.commit(step.entry)
        except MeshnetError as error:
            held = error
        finally:
            self.store.done(step.entry)
        step.told(held, queue_ms, compute_ms)
