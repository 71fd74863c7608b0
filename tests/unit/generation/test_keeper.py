from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import DatabaseError, InterfaceError, connection

from generation.keeper import Keeper
from generation.models import Generation, HeadWorker
from nodes.live import NodeSnapshot
from nodes.models import Node, NodeSample

pytestmark = pytest.mark.django_db

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
STATUS = {
    "model": "toy",
    "fingerprint": "sha256:toy",
    "start_layer": 0,
    "end_layer": 15,
    "dtype": "float32",
    "device": "cpu",
    "boot_id": "boot-1",
    "versions": {"meshnet": "0.1.0"},
}


class WallClock:
    """A wall clock that moves only when it is told to."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> WallClock:
    return WallClock()


def seen(status: dict[str, Any] | None = None, url: str = "http://n:1") -> NodeSnapshot:
    state = "unreachable" if status is None else "ready"
    return NodeSnapshot(url, status, None, None, state)  # type: ignore[arg-type]


def keeper_of(boot_id: str, clock: WallClock, *snapshots: NodeSnapshot) -> Keeper:
    return Keeper(boot_id, [], clock=clock, fetch=lambda clients: list(snapshots))


def running(owner: str, session: str = "s" * 32, **fields: Any) -> Generation:
    return Generation.objects.create(session_id=session, owner=owner, model_name="toy", started_at=START, **fields)


def test_the_first_tick_registers_the_worker_and_the_next_ones_only_move_its_sign_of_life(
    clock: WallClock,
) -> None:
    keeper = keeper_of("me", clock)
    keeper.tick()
    clock.advance(5)
    keeper.tick()
    worker = HeadWorker.objects.get()
    assert (worker.boot_id, worker.started_at, worker.beat_at) == ("me", START, START + timedelta(seconds=5))
    assert worker.hostname
    assert worker.pid > 0


def test_generations_of_a_worker_that_is_silent_for_30_seconds_are_interrupted(clock: WallClock) -> None:
    other, mine = keeper_of("other", clock), keeper_of("me", clock)
    orphan = running("other")
    other.tick()
    for _ in range(5):
        clock.advance(5)
        mine.tick()
        orphan.refresh_from_db()
        assert orphan.status == "running"
    clock.advance(5)
    mine.tick()
    orphan.refresh_from_db()
    assert (orphan.status, orphan.finished_at) == ("interrupted", clock.now)
    assert orphan.error == "The head worker that ran it has gone."


def test_generations_of_an_unknown_owner_are_interrupted(clock: WallClock) -> None:
    orphan = running("of an earlier start")
    keeper_of("me", clock).tick()
    orphan.refresh_from_db()
    assert orphan.status == "interrupted"


def test_its_own_generations_are_never_touched_not_even_without_a_sign_of_life(
    clock: WallClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = running("me"), running("other", session="t" * 32)
    keeper = keeper_of("me", clock)

    def refuse(now: datetime) -> None:
        raise DatabaseError("database is locked")

    monkeypatch.setattr(keeper, "_give_sign", refuse)
    refuse.__name__ = "_give_sign"
    keeper.tick()
    mine.refresh_from_db()
    theirs.refresh_from_db()
    assert (mine.status, theirs.status) == ("running", "interrupted")


@pytest.mark.parametrize("status", ["done", "failed", "cancelled"])
def test_what_has_ended_stays_as_it_is(clock: WallClock, status: str) -> None:
    ended = running("gone", status=status, error="said before")
    keeper_of("me", clock).tick()
    ended.refresh_from_db()
    assert (ended.status, ended.finished_at, ended.error) == (status, None, "said before")


def test_after_a_sleep_of_the_machine_the_others_get_a_round_to_speak(clock: WallClock) -> None:
    other, mine = keeper_of("other", clock), keeper_of("me", clock)
    theirs = running("other")
    other.tick()
    mine.tick()
    clock.advance(3600)
    mine.tick()  # woke up first: the other one looks silent and is not
    theirs.refresh_from_db()
    assert theirs.status == "running"
    other.tick()
    clock.advance(5)
    mine.tick()
    theirs.refresh_from_db()
    assert theirs.status == "running"
    clock.advance(20)
    mine.tick()
    clock.advance(20)
    mine.tick()  # now it is silent indeed
    theirs.refresh_from_db()
    assert theirs.status == "interrupted"


def test_workers_that_were_silent_for_a_day_are_forgotten(clock: WallClock) -> None:
    keeper_of("old", clock).tick()
    clock.advance(1)
    keeper_of("younger", clock).tick()
    clock.advance(24 * 3600)
    keeper_of("me", clock).tick()
    assert set(HeadWorker.objects.values_list("boot_id", flat=True)) == {"younger", "me"}


def test_nodes_are_written_as_they_describe_themselves_and_keep_one_row(clock: WallClock) -> None:
    keeper_of("me", clock, seen(STATUS)).tick()
    node = Node.objects.get()
    assert (node.url, node.boot_id, node.model_name, node.layers, node.dtype, node.device, node.version) == (
        "http://n:1", "boot-1", "toy", "0:15", "float32", "cpu", "0.1.0",
    )  # fmt: skip
    added_at = node.added_at
    clock.advance(5)
    keeper_of("me", clock, seen(STATUS | {"boot_id": "boot-2", "end_layer": 9})).tick()
    node = Node.objects.get()
    assert (node.boot_id, node.layers, node.seen_at, node.added_at) == ("boot-2", "0:9", clock.now, added_at)


def test_what_another_keeper_has_just_written_is_not_written_again(clock: WallClock) -> None:
    mine, other = keeper_of("me", clock, seen(STATUS)), keeper_of("other", clock, seen(STATUS))
    mine.tick()
    clock.advance(2)
    other.tick()
    assert Node.objects.get().seen_at == START
    clock.advance(1)
    other.tick()
    assert Node.objects.get().seen_at == clock.now, "it is seen again before anybody takes it for silent"
    clock.advance(1)
    keeper_of("new", clock, seen(STATUS | {"state": "draining", "device": "cuda"})).tick()
    assert Node.objects.get().device == "cuda", "what is new is written at once"


def test_a_silent_node_keeps_the_row_of_when_it_was_last_seen(clock: WallClock) -> None:
    keeper_of("me", clock, seen(STATUS)).tick()
    clock.advance(5)
    keeper_of("me", clock, seen(None)).tick()
    node = Node.objects.get()
    assert (node.url, node.seen_at, node.layers) == ("http://n:1", START, "0:15")


def test_a_node_that_never_answered_has_a_row_that_says_so(clock: WallClock) -> None:
    keeper = keeper_of("me", clock, seen(None), seen(STATUS, url="http://well:1"))
    keeper.tick()
    keeper.tick()
    rows = Node.objects.order_by("url").values_list("url", "seen_at")
    assert list(rows) == [("http://n:1", None), ("http://well:1", START)]


@pytest.mark.parametrize(
    "status",
    [{}, {"model": 5, "start_layer": "0", "end_layer": -1, "versions": ["1"]}, {"boot_id": "b" * 500}],
)
def test_an_odd_status_leaves_gaps_and_breaks_nothing(clock: WallClock, status: dict[str, Any]) -> None:
    keeper_of("me", clock, seen(status)).tick()
    node = Node.objects.get()
    assert (node.model_name, node.layers, node.version) == ("", "", "")
    assert len(node.boot_id) <= 64


def test_the_number_of_queries_does_not_grow_with_the_nodes(
    clock: WallClock, django_assert_max_num_queries: Any
) -> None:
    counts = []
    for number in (1, 40):
        keeper = sampling("me", clock, *(busy(url=f"http://n:{port}") for port in range(number)))
        keeper.tick()
        clock.advance(15)
        with django_assert_max_num_queries(20) as queries:
            keeper.tick()
        counts.append(len(queries))
    assert counts[0] == counts[1]
    assert Node.objects.count() == 40


def sampling(boot_id: str, clock: WallClock, *snapshots: NodeSnapshot, **options: Any) -> Keeper:
    return Keeper(
        boot_id, [], clock=clock, fetch=lambda clients: list(snapshots), **({"sample_seconds": 15.0} | options)
    )


def busy(sessions: int = 2, url: str = "http://n:1") -> NodeSnapshot:
    stats = {"sessions": sessions, "bytes": 4096, "evictions": {"ttl": 3, "lru": 1}}
    return NodeSnapshot(url, STATUS | {"work": {"tokens": 77}}, {"sessions": [], "stats": stats}, None, "ready")


def test_one_sample_per_node_and_interval_is_written_however_many_keepers_tick(clock: WallClock) -> None:
    keepers = [sampling(name, clock, busy(), busy(url="http://m:1"), seen(None, url="http://s:1")) for name in "ab"]
    for _ in range(6):
        for keeper in keepers:
            keeper.tick()
        clock.advance(5)
    rows = NodeSample.objects.order_by("node__url", "at").values_list("node__url", "at", "sessions", "tokens")
    assert list(rows) == [
        (url, START + timedelta(seconds=after), 2, 77) for url in ("http://m:1", "http://n:1") for after in (0, 15)
    ]


def test_samples_end_with_their_retention(clock: WallClock) -> None:
    keeper = sampling("me", clock, busy(), sample_retention=60.0)
    for _ in range(20):
        keeper.tick()
        clock.advance(15)
    assert NodeSample.objects.count() == 5


def test_without_an_interval_no_sample_is_written(clock: WallClock) -> None:
    keeper_of("me", clock, busy()).tick()
    assert not NodeSample.objects.exists()


def test_its_head_is_told_at_every_tick_which_nodes_are_removed(clock: WallClock) -> None:
    told: list[Any] = []
    keeper = sampling("me", clock, busy(), tell_removed=told.append)
    keeper.tick()
    Node.objects.update(is_removed=True)
    keeper.tick()
    Node.objects.update(is_removed=False)
    keeper.tick()
    assert told == [set(), {"http://n:1"}, set()]


def test_what_an_operator_removed_stays_removed_when_the_row_is_written_again(clock: WallClock) -> None:
    keeper = keeper_of("me", clock, seen(STATUS))
    keeper.tick()
    Node.objects.update(is_removed=True)
    keeper.tick()
    assert Node.objects.get().is_removed


@pytest.mark.parametrize("step", ["_give_sign", "_interrupt_orphans", "_forget_workers", "_write_nodes"])
def test_a_step_that_fails_is_logged_and_leaves_the_others_alone(
    clock: WallClock, monkeypatch: pytest.MonkeyPatch, caplog: Any, step: str
) -> None:
    orphan = running("gone")
    keeper_of("old", clock).tick()
    Generation.objects.update(status="running", finished_at=None)
    clock.advance(25 * 3600)
    keeper = keeper_of("me", clock, seen(STATUS))

    def fail(now: datetime) -> None:
        raise DatabaseError("the database has gone away")

    fail.__name__ = step
    monkeypatch.setattr(keeper, step, fail)
    keeper.tick()
    orphan.refresh_from_db()
    done = {
        "_give_sign": HeadWorker.objects.filter(boot_id="me").exists(),
        "_interrupt_orphans": orphan.status == "interrupted",
        "_forget_workers": not HeadWorker.objects.filter(boot_id="old").exists(),
        "_write_nodes": Node.objects.exists(),
    }
    assert done == {name: name != step for name in done}
    assert f"Keeper: {step.strip('_')} failed: DatabaseError: the database has gone away" in caplog.text


@pytest.mark.django_db(transaction=True)
def test_the_thread_registers_ticks_survives_errors_and_stops(clock: WallClock, caplog: Any) -> None:
    ticks: list[int] = []
    twice = threading.Event()

    def fetch(clients: Sequence[Any]) -> list[NodeSnapshot]:
        ticks.append(1)
        if len(ticks) == 1:
            raise OSError("no more threads")
        twice.set()
        return []

    keeper = Keeper("me", [], interval=0.01, clock=clock, fetch=fetch)
    keeper.start()
    try:
        assert HeadWorker.objects.filter(boot_id="me").exists()  # before anything could be asked of this head
        assert twice.wait(30)
    finally:
        keeper.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "meshnet-keeper"]
    assert "write_nodes failed: OSError: no more threads" in caplog.text


@pytest.mark.django_db(transaction=True)
def test_the_thread_gives_its_connection_back_before_it_waits(
    clock: WallClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    waiting = threading.Event()

    def close() -> None:
        events.append(f"{threading.current_thread().name} closes")
        connection.close()
        raise InterfaceError("it had gone already")

    def fetch(clients: Sequence[Any]) -> list[NodeSnapshot]:
        events.append("asks the nodes")
        return []

    keeper = Keeper("me", [], interval=60, clock=clock, fetch=fetch)
    wait = keeper._stopping.wait

    def observed_wait(timeout: float | None = None) -> bool:
        events.append(f"waits {timeout} s")
        waiting.set()
        return wait(timeout)

    # An in-memory SQLite stays open whatever is asked of it: what counts is that it was asked.
    monkeypatch.setattr("generation.keeper.connection", SimpleNamespace(in_atomic_block=True, close=close))
    monkeypatch.setattr(keeper._stopping, "wait", observed_wait)
    keeper.start()
    try:
        assert waiting.wait(30)
    finally:
        keeper.stop()
    assert events == ["asks the nodes", "meshnet-keeper closes", "waits 60 s"]


def test_stopping_a_keeper_that_never_started_is_fine(clock: WallClock) -> None:
    keeper_of("me", clock).stop()
