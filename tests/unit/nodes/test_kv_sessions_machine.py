"""The session store under pressure: hypothesis drives it and its clock against a model that a page can hold.

The model says of every call what it must return or raise, what it takes away and why; after each call the store's
statistics, rows and bytes are compared with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nodes.errors import Busy, ComputeFailed, KVCacheMiss, MeshnetError, PayloadTooLarge, Released
from nodes.kv_sessions import SessionCacheStore, StoreLimits
from nodes.layers import LayerRange
from tests.conftest import Clock
from tests.unit.nodes.kv_sessions_model import EXPECTED, LIMITS, FakeCache, Held, Model, Step

WHOLE, PART_START, PART_END = LayerRange(0, 4), LayerRange(1, 4), LayerRange(0, 3)
names = st.sampled_from("aabbccde")
seconds = st.sampled_from([*[0.0] * 8, 0.5, 4.0, 10.0, *[11.0] * 6, 30.0, 61.0])
tokens = st.sampled_from([1, 5, 9, 10, 10, 15, 20, 30, 31])


class StoreMachine(RuleBasedStateMachine):
    """Arrival, begin, end and failure of steps come in any order; time passes before each call, not after it."""

    @initialize()
    def start(self) -> None:
        self.clock = Clock()
        self.store = SessionCacheStore(LIMITS[0], clock=self.clock, wall=lambda: 0.0)
        self.model = Model(self.clock, LIMITS[0])
        self.waiting: list[Step] = []
        self.running: list[Step] = []
        self.ended: list[Step] = []
        self.most_sessions = self.most_bytes = self.held_when_lowered = 0

    # -- what the model is compared with

    def everything(self) -> list[Held]:
        """The sessions whose bytes count: those in the table and those that a step still uses."""
        steps = (*self.waiting, *self.running, *self.ended)
        return list({id(held): held for held in (*self.model.live.values(), *(step.held for step in steps))}.values())

    def bytes_held(self) -> int:
        return sum(held.nbytes for held in self.everything())

    def claimed(self) -> int:
        return sum(held.claim for held in self.everything())

    def see(self) -> None:
        self.most_sessions = max(self.most_sessions, len(self.model.live))
        self.most_bytes = max(self.most_bytes, self.bytes_held())

    def expect(self, error: type[MeshnetError] | None, call: Callable[[], Any]) -> Any:
        """The call's result; None when it raised the error that it had to raise."""
        try:
            result = call()
        except MeshnetError as raised:
            assert error is not None and type(raised) is error, raised
            if isinstance(raised, KVCacheMiss):
                self.model.misses[raised.extra["reason"]] += 1
            return None
        assert error is None, f"{error} was expected"
        return result

    # -- arrivals

    @rule(name=names, size=tokens, later=seconds)
    def prefill_arrives(self, name: str, size: int, later: float) -> None:
        self.prefill(name, size, later)

    @rule(name=names, size=tokens, later=seconds)
    def prefill_arrives_and_ends(self, name: str, size: int, later: float) -> None:
        """Without it three sessions at rest would be a rare sight."""
        step = self.prefill(name, size, later)
        if step is not None:
            self.begin(step)
            self.succeed(step)
            self.end(step)

    def prefill(self, name: str, size: int, later: float) -> Step | None:
        self.clock.advance(later)
        self.model.expire()
        need = EXPECTED * size
        old = self.model.live.get(name)
        goes = old.claim if old is not None and not old.in_use else 0
        going = self.model.room(old, 0 if old else 1, self.claimed() - goes + need)
        error: type[MeshnetError] | None = None
        if self.model.is_released(name):
            error = Released
        elif need > self.model.limits.max_bytes:
            error = PayloadTooLarge
        elif going is None:
            error = Busy
        entry = self.expect(error, lambda: self.store.open(name, WHOLE, FakeCache, need))
        if entry is None:
            return None
        for held, reason in [*(going or []), *([(old, "replaced")] if old else [])]:
            self.model.leave(held, reason)
        new = Held(name, self.clock.now, promised=need, in_use=1)
        self.model.live[name] = new
        self.model.prefills += 1
        step = Step(entry, new, None, size, WHOLE)
        self.waiting.append(step)
        self.see()
        return step

    @rule(
        name=names,
        size=st.sampled_from([1, 1, 1, 4, 9, 41]),
        off=st.sampled_from([0, 0, 0, 0, -1, 1]),
        layers=st.sampled_from([WHOLE, WHOLE, WHOLE, PART_START, PART_END]),
        later=seconds,
    )
    def decode_arrives(self, name: str, size: int, off: int, layers: LayerRange, later: float) -> None:
        self.clock.advance(later)
        self.model.expire()
        held = self.model.live.get(name)
        self.decode(name, size, max(0, (held.tokens if held else 7) + off), layers)

    def decode(self, name: str, size: int, past_len: int, layers: LayerRange) -> Step | None:
        held = self.model.live.get(name)
        more = EXPECTED * size if size > 1 else 0  # a single token is always taken
        need = (held.nbytes if held else 0) + more
        going: list[tuple[Held, str]] | None = []
        error: type[MeshnetError] | None = None
        if self.model.is_released(name):
            error = Released
        elif held is None:
            error = KVCacheMiss
        elif more and past_len == held.tokens:
            going = self.model.room(held, 0, self.claimed() - held.claim + need)
            error = PayloadTooLarge if need > self.model.limits.max_bytes else Busy if going is None else None
        entry = self.expect(error, lambda: self.store.take(name, past_len, more))
        if entry is None or held is None:
            return None
        for victim, reason in going or []:
            self.model.leave(victim, reason)
        if more and past_len == held.tokens:
            held.promised = max(held.promised, need)
        held.in_use += 1
        step = Step(entry, held, past_len, size, layers)
        self.waiting.append(step)
        return step

    @rule(data=st.data(), size=st.sampled_from([1, 1, 1, 2, 5, 10]), later=seconds)
    def decode_arrives_and_ends(self, data: st.DataObject, size: int, later: float) -> None:
        """One that fits, of a session at rest."""
        self.clock.advance(later)
        self.model.expire()
        at_rest = [held for held in self.model.live.values() if not held.in_use]
        if at_rest:
            held = data.draw(st.sampled_from(at_rest))
            step = self.decode(held.name, size, held.tokens, WHOLE)
            if step is not None:
                self.begin(step)
                self.succeed(step)
                self.end(step)

    # -- on the engine's thread

    @precondition(lambda self: self.waiting)
    @rule(data=st.data(), later=seconds)
    def step_begins(self, data: st.DataObject, later: float) -> None:
        free = [step for step in self.waiting if not any(step.held is other.held for other in self.running)]
        if not free:
            return
        step = data.draw(st.sampled_from(free))
        self.clock.advance(later)
        self.begin(step)

    def begin(self, step: Step) -> None:
        self.waiting.remove(step)
        held = step.held
        error: type[MeshnetError] | None = None
        if held.gone and self.model.is_released(held.name):
            error = Released
        elif step.past_len is None:
            error = {"replaced": Released, "error": ComputeFailed}.get(held.gone or "")
        elif held.gone or step.layers != WHOLE or step.past_len != held.tokens:
            error = KVCacheMiss
        self.expect(error, lambda: self.store.begin(step.entry, step.layers, step.past_len))
        if error is not None:
            self.ended.append(step)
            return
        if step.past_len is not None:
            held.hits += 1
            self.model.hits += 1
        self.running.append(step)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), later=seconds)
    def step_succeeds(self, data: st.DataObject, later: float) -> None:
        step = data.draw(st.sampled_from(self.running))
        self.clock.advance(later)
        self.succeed(step)

    def succeed(self, step: Step) -> None:
        self.running.remove(step)
        self.ended.append(step)
        step.entry.cache.tokens += step.size
        step.held.tokens += step.size
        assert self.store.commit(step.entry) == step.held.tokens
        step.held.last_used = self.clock.now
        if step.held.gone is None:
            self.model.live[step.held.name] = self.model.live.pop(step.held.name)
        self.see()

    @precondition(lambda self: self.running)
    @rule(data=st.data(), half=st.booleans())
    def step_fails(self, data: st.DataObject, half: bool) -> None:
        step = data.draw(st.sampled_from(self.running))
        self.running.remove(step)
        self.ended.append(step)
        step.entry.cache.tokens += step.size if half else 0  # some layers appended before one failed
        self.store.fail(step.entry)
        self.model.leave(step.held, "error")

    @precondition(lambda self: self.ended)
    @rule(data=st.data(), later=seconds)
    def step_is_over(self, data: st.DataObject, later: float) -> None:
        step = data.draw(st.sampled_from(self.ended))
        self.clock.advance(later)
        self.end(step)

    def end(self, step: Step) -> None:
        self.ended.remove(step)
        step.held.in_use -= 1
        if not step.held.in_use:
            step.held.promised = 0
        self.store.done(step.entry)
        self.shrink()

    def shrink(self) -> None:
        excess = self.bytes_held() - self.model.limits.max_bytes
        for victim in self.model.victims():
            if excess <= 0:
                return
            excess -= victim.nbytes
            self.model.leave(victim, "bytes")
        assert self.bytes_held() <= self.model.limits.max_bytes or not self.model.victims()

    # -- evictions

    @rule(chosen=st.lists(names, max_size=2), by=st.sampled_from(["operator", "released"]), later=seconds)
    def some_are_evicted(self, chosen: list[str], by: Any, later: float) -> None:
        self.clock.advance(later)
        self.model.expire()
        once = list(dict.fromkeys(chosen))
        expected = [name for name in once if name in self.model.live], [n for n in once if n not in self.model.live]
        assert self.store.evict(chosen, by) == expected
        for name in expected[0]:
            self.model.leave(self.model.live[name], by)

    @rule(idle=st.sampled_from([3.0, 30.0, 30.0, 59.0, 59.0, None]), later=seconds)
    def the_idle_or_all_are_evicted(self, idle: float | None, later: float) -> None:
        self.clock.advance(later)
        self.model.expire()
        live = list(self.model.live.values())
        if idle is not None:
            live = [held for held in live if not held.in_use and self.clock.now - held.last_used > idle]
        evicted = self.store.evict_all() if idle is None else self.store.evict_idle(idle)
        assert evicted == [held.name for held in live]
        for held in live:
            self.model.leave(held, "operator")

    @rule(name=st.sampled_from("de"), later=seconds)
    def one_is_released(self, name: str, later: float) -> None:
        self.clock.advance(later)
        held = self.model.live.get(name)
        assert self.store.release(name) is (held is not None)
        self.model.tombstones[name] = self.clock.now
        if held is not None:
            self.model.leave(held, "released")

    @rule(later=seconds)
    def the_sweeper_comes(self, later: float) -> None:
        self.clock.advance(later)
        self.store.sweep()
        self.model.expire()
        self.shrink()

    @rule(limits=st.sampled_from(LIMITS), later=seconds)
    def an_operator_changes_the_limits(self, limits: StoreLimits, later: float) -> None:
        self.clock.advance(later)
        self.store.set_limits(limits)
        self.model.limits = limits
        self.model.expire()
        excess = len(self.model.live) - limits.max_sessions
        for victim in self.model.victims()[: max(0, excess)]:
            self.model.leave(victim, "lru")
        self.shrink()
        self.held_when_lowered = len(self.model.live)

    # -- after every call

    @invariant()
    def the_store_agrees_with_the_model(self) -> None:
        self.store.check_integrity()
        snapshot = self.store.snapshot()
        self.model.expire()
        stats, rows = snapshot["stats"], snapshot["sessions"]
        assert [row["id"] for row in rows] == list(reversed(self.model.live))
        assert stats["sessions"] == len(rows)
        for row in rows:
            held = self.model.live[row["id"]]
            assert (row["past_len"], row["bytes"], row["hits"]) == (held.tokens, held.nbytes, held.hits)
            assert row["busy"] == (held.in_use > 0)
            assert row["idle_seconds"] == round(self.clock.now - held.last_used, 3)
        assert stats["bytes"] == self.bytes_held()
        assert {reason: n for reason, n in stats["evictions"].items() if n} == +self.model.left
        assert {reason: n for reason, n in stats["misses"].items() if n} == +self.model.misses
        assert (stats["hits"], stats["prefills"]) == (self.model.hits, self.model.prefills)
        assert stats["prefills"] == len(rows) + sum(stats["evictions"].values())
        assert (stats["high_water_sessions"], stats["high_water_bytes"]) == (self.most_sessions, self.most_bytes)

    @invariant()
    def only_what_was_held_when_a_cap_was_lowered_is_over_it(self) -> None:
        assert len(self.model.live) <= max(self.model.limits.max_sessions, self.held_when_lowered)

    @invariant()
    def nothing_in_use_was_taken_to_make_room(self) -> None:
        for step in (*self.waiting, *self.running):
            assert step.held.gone not in ("lru", "bytes", "ttl")
            assert step.entry.detached == step.held.gone

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        for step in self.running:
            self.store.fail(step.entry)
        for step in (*self.waiting, *self.running, *self.ended):
            self.store.done(step.entry)
        self.store.check_integrity()
        self.store.evict_all()
        stats = self.store.snapshot()["stats"]
        assert (stats["sessions"], stats["bytes"]) == (0, 0)
        assert stats["prefills"] == sum(stats["evictions"].values())


TestStoreUnderPressure = StoreMachine.TestCase
TestStoreUnderPressure.settings = settings(
    max_examples=150,
    stateful_step_count=60,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
