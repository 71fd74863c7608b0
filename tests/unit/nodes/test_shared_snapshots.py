"""What workers of several heads heard is known to all, never older than one worker alone would know it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from django.core.cache.backends.redis import RedisCache
from redis.backoff import NoBackoff
from redis.retry import Retry

from nodes import shared_snapshots
from nodes.live import NodeSnapshot
from nodes.shared_snapshots import FRESH_SECONDS, JsonSerializer, SharedSnapshots
from nodes.snapshots import SnapshotCache
from tests.conftest import Clock
from tests.processes import free_port
from tests.redis_server import PASSWORD, Server
from tests.unit.nodes.test_snapshots import Asked, said, silent

A, B = "http://a", "http://b"


def cache_of(port: int) -> RedisCache:
    options = {"serializer": JsonSerializer, "retry": Retry(NoBackoff(), 0), "socket_connect_timeout": 0.5}
    return RedisCache(f"redis://:{PASSWORD}@127.0.0.1:{port}/7", {"KEY_PREFIX": "meshnet", "OPTIONS": options})


@pytest.fixture
def cache(redis_server: Server) -> Iterator[RedisCache]:
    cache = cache_of(redis_server.port)
    cache.clear()
    yield cache
    cache._cache.get_client(write=True).connection_pool.disconnect()


class Worker:
    """A head worker's snapshots. `say` is what nodes would answer now, `asked` which were asked, one tuple a time."""

    def __init__(self, cache: RedisCache, clock: Clock) -> None:
        self.say: dict[str, NodeSnapshot] = {A: said(A), B: said(B)}
        self.asked: list[tuple[str, ...]] = []
        self.during = lambda: None
        self.shared = SharedSnapshots(cache, clock=clock)
        self.cache = SnapshotCache(clock=clock, fetch=self.fetch, shared=self.shared)

    def fetch(self, clients: Sequence[Any]) -> list[NodeSnapshot]:
        self.asked.append(tuple(client.url for client in clients))
        self.during()
        return [self.say[client.url] for client in clients]

    def look(self, *urls: str) -> Any:
        return self.cache.look([Asked(url) for url in urls or (A, B)])  # type: ignore[misc]


@pytest.fixture
def workers(cache: RedisCache, clock: Clock) -> list[Worker]:
    return [Worker(cache, clock) for _ in range(4)]


def expire(cache: RedisCache) -> None:
    """What the cache does by its own clock after FRESH_SECONDS."""
    client = cache._cache.get_client(write=True)
    for name in client.scan_iter("*snapshots*"):
        if 0 < client.pttl(name) <= 1000 * FRESH_SECONDS:
            client.delete(name)


def test_nodes_are_asked_once_for_all_workers(workers: list[Worker]) -> None:
    seen = [worker.look() for worker in workers]
    assert [worker.asked for worker in workers] == [[(A, B)], [], [], []]
    assert all([node.now for node in one] == [node.now for node in seen[0]] for one in seen)
    assert not any(node.is_stale for one in seen for node in one)


def test_workers_that_name_nodes_in_other_orders_or_know_more_ask_for_what_is_missing(workers: list[Worker]) -> None:
    workers[0].look(B)
    assert [node.url for node in workers[1].look(A, B)] == [A, B]
    assert workers[1].asked == [(A,)]
    workers[2].look(B, A)
    assert workers[2].asked == []


def test_what_is_known_is_as_old_as_it_is_whoever_asked(workers: list[Worker], clock: Clock, cache: RedisCache) -> None:
    """News of 1.5 s are fresh for half a second more, not for two."""
    workers[0].look()
    clock.advance(1.5)
    workers[1].look()
    assert workers[1].look()[0].age == 1.5
    expire(cache)
    clock.advance(0.4)
    workers[1].look()
    assert workers[1].asked == []
    clock.advance(0.1)
    workers[1].look()
    assert workers[1].asked == [(A, B)]


def test_entries_live_in_the_cache_for_as_long_as_they_are_fresh(workers: list[Worker], cache: RedisCache) -> None:
    workers[0].look()
    client = cache._cache.get_client(write=True)
    ends = [client.pttl(name) for name in client.scan_iter("*snapshots*")]
    assert len(ends) == 2 and all(0 < end <= 1000 * FRESH_SECONDS for end in ends)


def test_after_a_change_no_worker_is_shown_what_was_before_it(workers: list[Worker]) -> None:
    for worker in workers:
        worker.look()
    for worker in workers:
        worker.say[A] = said(A, boot="after")
    workers[0].cache.forget()
    assert [worker.look()[0].now.status["boot_id"] for worker in workers] == ["after"] * 4
    assert sum(len(worker.asked) for worker in workers) == 2


def test_what_was_asked_before_a_change_is_not_known_after_it(workers: list[Worker]) -> None:
    slow, other = workers[:2]
    slow.during = other.cache.forget
    slow.look()
    other.say[A] = said(A, boot="after")
    assert other.look()[0].now.status["boot_id"] == "after"


def test_many_workers_that_look_at_once_ask_once(workers: list[Worker]) -> None:
    release, asking = threading.Event(), threading.Event()

    def hold() -> None:
        asking.set()
        assert release.wait(10)

    workers[0].during = hold
    first = threading.Thread(target=workers[0].look)
    first.start()
    assert asking.wait(10)
    waits = threading.Barrier(4)

    def wait(seconds: float) -> None:
        # All have found that somebody asks, before that one is let go on.
        if not release.is_set():
            waits.wait(10)
            release.set()
        first.join(10)

    for worker in workers[1:]:
        worker.shared._wait = wait
    others = [threading.Thread(target=worker.look) for worker in workers[1:]]
    for thread in others:
        thread.start()
    waits.wait(10)
    for thread in [first, *others]:
        thread.join(10)
    assert [worker.asked for worker in workers] == [[(A, B)], [], [], []]


def test_nobody_waits_long_for_a_worker_that_asks_and_does_not_come_back(
    workers: list[Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_snapshots, "PATIENCE_SECONDS", 0.05)
    died, other = workers[:2]

    def die() -> None:
        raise SystemExit

    died.during = die
    died.shared._cache.delete = lambda *_: None  # type: ignore[method-assign, assignment]
    with pytest.raises(SystemExit):
        died.look()
    assert [node.url for node in other.look()] == [A, B]
    assert other.asked == [(A, B)]


def test_that_a_node_was_silent_is_not_shared(workers: list[Worker]) -> None:
    workers[0].say[A] = silent(A)
    assert workers[0].look()[0].is_stale
    assert not workers[1].look()[0].is_stale, "it answers this one"
    assert workers[1].asked == [(A,)]


def test_a_node_that_was_silent_is_asked_after_the_others_are_known_to_all(workers: list[Worker], clock: Clock) -> None:
    one, two = workers[:2]
    one.say[A] = two.say[A] = silent(A)
    one.look()
    two.look()
    one.cache.forget()
    one.look()
    assert one.asked[-2:] == [(B,), (A,)]
    two.look()
    assert two.asked[-1] == (A,)


def test_a_node_in_this_process_is_nobody_elses(workers: list[Worker]) -> None:
    for worker in workers[:2]:
        worker.say["local:"] = said("local:")
        worker.look("local:", A)
    assert [worker.asked for worker in workers[:2]] == [[(A,), ("local:",)], [("local:",)]]


def test_without_the_cache_each_worker_asks_for_itself_and_does_not_try_again_at_once(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Worker(cache_of(free_port()), clock)
    assert [node.url for node in worker.look()] == [A, B]
    worker.cache.forget()
    worker.look()
    assert worker.asked == [(A, B), (A, B)]
    assert caplog.text.count("The shared cache is away") == 2  # after a change it is tried once more
    assert PASSWORD not in caplog.text


WHOLE = {"status": {}, "sessions": {"sessions": []}}


@pytest.mark.parametrize("junk", [1, "text", [], {}, {"at": "x", **WHOLE}, {"at": 10**400, **WHOLE}])
def test_what_no_node_can_have_said_is_left(
    workers: list[Worker], cache: RedisCache, junk: Any, caplog: pytest.LogCaptureFixture
) -> None:
    for url in (A, B):
        cache.set(f"snapshots:first:{shared_snapshots._digest(url)}", junk)
    assert not any(node.is_stale for node in workers[0].look())
    assert workers[0].asked == [(A, B)]
    assert "something else than what a node said" in caplog.text


@pytest.mark.parametrize("junk", [b"\x80\x05\x95", b"[" * 100_000, b"1" * 100_000])
def test_what_is_not_even_json_is_left(workers: list[Worker], cache: RedisCache, junk: bytes) -> None:
    client = cache._cache.get_client(write=True)
    client.set(cache.make_key(f"snapshots:first:{shared_snapshots._digest(A)}"), junk)
    workers[0].look()
    assert workers[0].asked == [(A, B)]


def test_what_is_read_is_data_and_never_code() -> None:
    value = {"status": {"boot_id": "1"}, "at": 1.5}
    assert JsonSerializer().loads(JsonSerializer().dumps(value)) == value
    for junk in (b"\x80\x05\x95", b"[" * 100_000):
        with pytest.raises(ValueError):
            JsonSerializer().loads(junk)
