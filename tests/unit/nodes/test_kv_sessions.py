from __future__ import annotations

from dataclasses import replace

import pytest

from nodes.errors import Busy, KVCacheMiss, PayloadTooLarge, Released
from nodes.kv_sessions import TOMBSTONE_SECONDS, SessionCacheEntry, SessionCacheStore, StoreLimits
from nodes.layers import LayerRange
from tests.conftest import Clock

LAYERS = LayerRange(0, 2)


class FakeCache:
    """Ten bytes a token."""

    def __init__(self) -> None:
        self.tokens = 0

    def nbytes(self) -> int:
        return 10 * self.tokens


class Store:
    """A store with the steps of a node in one call each."""

    def __init__(self, clock: Clock, **limits: float) -> None:
        values = {"ttl_seconds": 60.0, "max_sessions": 3, "max_bytes": 1000, "active_seconds": 10.0, **limits}
        self.clock = clock
        self.store = SessionCacheStore(StoreLimits(**values), clock=clock)  # type: ignore[arg-type]

    def open(self, name: str, tokens: int = 5) -> SessionCacheEntry:
        entry: SessionCacheEntry = self.store.open(name, LAYERS, FakeCache, 10 * tokens)
        return entry

    def prefill(self, name: str, tokens: int = 5) -> SessionCacheEntry:
        entry = self.open(name, tokens)
        self.run(entry, None, tokens)
        return entry

    def decode(self, name: str, past_len: int, tokens: int = 1, layers: LayerRange = LAYERS) -> int:
        entry = self.store.take(name, past_len)
        return self.run(entry, past_len, tokens, layers)

    def run(self, entry: SessionCacheEntry, past_len: int | None, tokens: int, layers: LayerRange = LAYERS) -> int:
        try:
            self.store.begin(entry, layers, past_len)
            entry.cache.tokens += tokens
            return self.store.commit(entry)
        finally:
            self.store.done(entry)
            self.store.check_integrity()

    def names(self) -> list[str]:
        return [row["id"] for row in self.store.snapshot()["sessions"]]

    def stats(self) -> dict[str, dict[str, int]]:
        stats: dict[str, dict[str, int]] = self.store.snapshot()["stats"]
        return stats


@pytest.fixture
def store(clock: Clock) -> Store:
    return Store(clock)


def test_a_session_grows_by_the_tokens_of_each_step(store: Store) -> None:
    store.prefill("a", 5)
    assert store.decode("a", 5) == 6
    assert store.decode("a", 6, tokens=4) == 10
    (row,) = store.store.snapshot()["sessions"]
    assert (row["past_len"], row["bytes"], row["hits"], row["busy"]) == (10, 100, 2, False)
    assert store.stats()["hits"] == 2
    assert store.stats()["bytes"] == 100


def test_the_most_recently_used_session_is_listed_first(store: Store) -> None:
    for name in "abc":
        store.prefill(name)
    store.decode("a", 5)
    assert store.names() == ["a", "c", "b"]


@pytest.mark.parametrize("past_len", [4, 6])
def test_a_step_at_another_length_is_a_miss_and_changes_nothing(store: Store, past_len: int) -> None:
    store.prefill("a", 5)
    with pytest.raises(KVCacheMiss) as miss:
        store.decode("a", past_len)
    assert miss.value.extra == {"reason": "past_len_mismatch", "expected": past_len, "held": 5}
    assert store.stats()["misses"]["past_len_mismatch"] == 1
    assert store.decode("a", 5) == 6


def test_a_step_for_an_unknown_session_is_a_miss(store: Store) -> None:
    with pytest.raises(KVCacheMiss) as miss:
        store.decode("nobody", 3)
    assert miss.value.extra == {"reason": "unknown_session", "expected": 3, "held": 0}
    assert store.names() == []


@pytest.mark.parametrize(
    ("layers", "reason"), [(LayerRange(1, 2), "start_layer_mismatch"), (LayerRange(0, 1), "layer_range_mismatch")]
)
def test_a_step_through_other_layers_is_a_miss(store: Store, layers: LayerRange, reason: str) -> None:
    store.prefill("a", 5)
    with pytest.raises(KVCacheMiss) as miss:
        store.decode("a", 5, layers=layers)
    assert miss.value.extra["reason"] == reason


def test_a_prefill_replaces_what_was_under_the_id(store: Store) -> None:
    old = store.prefill("a", 5)
    new = store.prefill("a", 7)
    assert new is not old
    assert store.names() == ["a"]
    assert store.stats()["bytes"] == 70
    assert store.stats()["evictions"]["replaced"] == 1


def test_d04_of_two_equal_steps_the_second_is_a_miss(store: Store) -> None:
    store.prefill("a", 5)
    first, second = store.store.take("a", 5), store.store.take("a", 5)
    store.run(first, 5, 1)
    with pytest.raises(KVCacheMiss) as miss:
        store.run(second, 5, 1)
    assert miss.value.extra["held"] == 6
    assert store.decode("a", 6) == 7


def test_a_session_expires_after_its_time_without_any_traffic(store: Store, clock: Clock) -> None:
    store.prefill("a")
    clock.advance(59.9)
    store.store.sweep()
    assert store.names() == ["a"]
    clock.advance(0.2)
    store.store.sweep()
    assert store.stats()["evictions"]["ttl"] == 1
    assert store.stats()["bytes"] == 0


def test_a_step_renews_the_time_to_live(store: Store, clock: Clock) -> None:
    store.prefill("a")
    clock.advance(50)
    store.decode("a", 5)
    clock.advance(50)
    assert store.decode("a", 6) == 7


def test_expiry_is_seen_on_access_before_the_sweeper_comes(store: Store, clock: Clock) -> None:
    store.prefill("a")
    clock.advance(61)
    with pytest.raises(KVCacheMiss):
        store.decode("a", 5)


def test_a_session_in_use_does_not_expire_under_its_step(store: Store, clock: Clock) -> None:
    store.prefill("a")
    entry = store.store.take("a", 5)
    clock.advance(100)
    store.store.sweep()
    assert store.run(entry, 5, 1) == 6
    assert store.names() == ["a"]


def test_a_new_session_takes_the_least_recently_used_idle_one(store: Store, clock: Clock) -> None:
    for name in "abc":
        store.prefill(name)
    store.decode("a", 5)
    clock.advance(11)
    store.prefill("d")
    assert set(store.names()) == {"a", "c", "d"}
    assert store.stats()["evictions"]["lru"] == 1


def test_an_active_session_is_never_taken_and_the_newcomer_is_told_to_wait(store: Store, clock: Clock) -> None:
    for name in "abc":
        store.prefill(name)
    clock.advance(9.9)
    with pytest.raises(Busy) as busy:
        store.prefill("d")
    assert busy.value.retry_after == 1
    assert set(store.names()) == {"a", "b", "c"}
    assert sum(store.stats()["evictions"].values()) == 0


def test_a_session_in_use_is_never_taken(store: Store, clock: Clock) -> None:
    for name in "abc":
        store.prefill(name)
    using = [store.store.take(name, 5) for name in "abc"]
    clock.advance(30)
    with pytest.raises(Busy):
        store.prefill("d")
    for entry in using:
        store.run(entry, 5, 1)


def test_a_full_store_still_lets_a_session_prefill_again(store: Store) -> None:
    for name in "abc":
        store.prefill(name)
    store.prefill("b", 9)
    assert set(store.names()) == {"a", "b", "c"}


def test_bytes_make_room_among_idle_sessions(store: Store, clock: Clock) -> None:
    store.prefill("a", 40)
    store.prefill("b", 40)
    clock.advance(11)
    store.prefill("c", 50)
    assert set(store.names()) == {"b", "c"}
    assert store.stats()["evictions"]["bytes"] == 1


def test_a_prompt_that_does_not_fit_beside_running_sessions_waits(store: Store) -> None:
    store.prefill("a", 60)
    with pytest.raises(Busy, match="500 bytes"):
        store.prefill("b", 50)
    assert store.names() == ["a"]


def test_prompts_that_arrive_together_do_not_each_find_the_budget_free(store: Store) -> None:
    first = store.open("a", 60)
    with pytest.raises(Busy, match="500 bytes"):
        store.open("b", 50)
    assert store.stats()["bytes"] == 0, "what is only announced is not shown as held"
    store.run(first, None, 20)
    store.prefill("b", 50)
    assert store.stats()["bytes"] == 700


def test_an_announced_piece_of_a_prompt_counts_until_its_step_ends(store: Store) -> None:
    store.prefill("a", 40)
    piece = store.store.take("a", 40, 400)
    with pytest.raises(Busy):
        store.open("b", 30)
    store.store.done(piece)
    store.prefill("b", 30)


def test_a_prompt_that_could_never_fit_is_refused_for_good(store: Store) -> None:
    with pytest.raises(PayloadTooLarge, match="MESHNET_KV_MAX_BYTES"):
        store.prefill("a", 101)
    assert store.names() == []


def test_further_pieces_of_a_prompt_keep_to_the_budget(store: Store) -> None:
    store.prefill("a", 40)
    store.prefill("b", 40)
    with pytest.raises(Busy):
        store.store.take("b", 40, 300)
    assert store.store.take("b", 40, 200).in_use == 1
    with pytest.raises(PayloadTooLarge):
        store.store.take("a", 40, 700)


def test_a_prefill_that_waits_while_a_later_one_takes_its_place_is_not_run(store: Store) -> None:
    waiting = store.open("a", 5)
    store.prefill("a", 5)
    with pytest.raises(Released, match="later prefill"):
        store.run(waiting, None, 5)
    assert store.decode("a", 5) == 6


def test_a_prefill_that_waits_while_an_operator_evicts_it_is_run_and_not_kept(store: Store) -> None:
    waiting = store.open("a", 5)
    store.store.evict(["a"])
    assert store.run(waiting, None, 5) == 5
    assert store.names() == []
    assert store.stats()["bytes"] == 0


def test_a_session_that_cannot_replace_itself_for_want_of_bytes_keeps_what_it_has(store: Store) -> None:
    store.prefill("a", 60)
    store.prefill("b", 30)
    with pytest.raises(Busy):
        store.prefill("b", 50)
    assert store.decode("b", 30) == 31


def test_a_session_that_grows_over_the_budget_takes_idle_ones(store: Store, clock: Clock) -> None:
    store.prefill("a", 40)
    clock.advance(11)
    store.prefill("b", 50)
    store.decode("b", 50, tokens=30)
    assert store.names() == ["b"]
    assert store.stats()["bytes"] == 800


def test_an_operator_evicts_and_the_next_step_is_a_miss(store: Store) -> None:
    store.prefill("a")
    assert store.store.evict(["a", "x", "a"]) == (["a"], ["x"])
    with pytest.raises(KVCacheMiss):
        store.decode("a", 5)
    store.prefill("a", 6)
    assert store.stats()["evictions"]["operator"] == 1


def test_idle_sessions_are_evicted_by_their_age_and_those_in_use_are_left(store: Store, clock: Clock) -> None:
    store.prefill("a")
    store.prefill("b")
    entry = store.store.take("a", 5)
    clock.advance(5)
    store.prefill("c")
    assert store.store.evict_idle(4) == ["b"]
    store.run(entry, 5, 1)
    assert set(store.store.evict_all()) == {"a", "c"}


def test_a_step_that_runs_while_its_session_is_evicted_is_delivered_and_the_session_stays_gone(store: Store) -> None:
    store.prefill("a", 5)
    entry = store.store.take("a", 5)
    store.store.begin(entry, LAYERS, 5)
    store.store.evict(["a"])
    entry.cache.tokens += 1
    assert store.store.commit(entry) == 6
    assert store.stats()["bytes"] == 60, "a detached session counts until its step ends"
    store.store.done(entry)
    store.store.check_integrity()
    assert store.stats()["bytes"] == 0
    assert store.names() == []


def test_a_step_that_waits_while_its_session_is_evicted_is_a_miss(store: Store) -> None:
    store.prefill("a", 5)
    entry = store.store.take("a", 5)
    store.store.evict(["a"])
    with pytest.raises(KVCacheMiss) as miss:
        store.run(entry, 5, 1)
    assert miss.value.extra["reason"] == "unknown_session"


def test_a_step_that_waits_on_the_old_entry_while_a_prefill_replaces_it_is_a_miss(store: Store) -> None:
    store.prefill("a", 5)
    waiting = store.store.take("a", 5)
    store.prefill("a", 5)
    with pytest.raises(KVCacheMiss):
        store.run(waiting, 5, 1)
    assert store.decode("a", 5) == 6


def test_a_failed_step_drops_its_session(store: Store) -> None:
    store.prefill("a", 5)
    entry = store.store.take("a", 5)
    store.store.begin(entry, LAYERS, 5)
    store.store.fail(entry)
    store.store.done(entry)
    store.store.check_integrity()
    assert store.stats()["evictions"]["error"] == 1
    assert store.stats()["bytes"] == 0


def test_a_released_session_cannot_come_back_to_life(store: Store, clock: Clock) -> None:
    store.prefill("a", 5)
    waiting = store.store.take("a", 5)
    assert store.store.release("a") is True
    assert store.store.release("a") is False
    with pytest.raises(Released):
        store.run(waiting, 5, 1)
    for late in (lambda: store.prefill("a"), lambda: store.decode("a", 5)):
        with pytest.raises(Released):
            late()
    clock.advance(TOMBSTONE_SECONDS)
    store.store.sweep()
    store.prefill("a")


def test_a_session_given_back_by_its_head_may_come_again(store: Store) -> None:
    store.prefill("a", 5)
    store.store.evict(["a"], by="released")
    store.prefill("a", 5)
    assert store.stats()["evictions"] == {**dict.fromkeys(store.stats()["evictions"], 0), "released": 1}


def test_lowered_limits_take_idle_sessions_and_leave_active_ones(store: Store, clock: Clock) -> None:
    for name in "ab":
        store.prefill(name)
    clock.advance(11)
    store.prefill("c")
    using = store.store.take("a", 5)
    store.store.set_limits(replace(store.store.limits, max_sessions=1))
    assert set(store.names()) == {"a", "c"}, "b was idle; a is in use and c is active"
    store.run(using, 5, 1)
    with pytest.raises(Busy):
        store.prefill("d")


def test_a_changed_time_to_live_counts_from_the_last_use(store: Store, clock: Clock) -> None:
    store.prefill("a")
    clock.advance(30)
    store.store.set_limits(replace(store.store.limits, ttl_seconds=29))
    assert store.names() == []
    assert store.stats()["evictions"]["ttl"] == 1


def test_lowered_bytes_take_idle_sessions(store: Store, clock: Clock) -> None:
    store.prefill("a", 40)
    clock.advance(11)
    store.prefill("b", 40)
    store.store.set_limits(replace(store.store.limits, max_bytes=500))
    assert store.names() == ["b"]


def test_high_water_marks_stay(store: Store) -> None:
    store.prefill("a", 30)
    store.prefill("b", 30)
    store.store.evict_all()
    stats = store.stats()
    assert (stats["high_water_sessions"], stats["high_water_bytes"]) == (2, 600)
