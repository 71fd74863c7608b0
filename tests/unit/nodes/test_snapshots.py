from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from nodes.live import NodeSnapshot
from nodes.snapshots import FRESH_SECONDS, REMEMBERED_MARKS, SnapshotCache
from tests.conftest import Clock


class Asked:
    """A client that is only asked for its URL."""

    def __init__(self, url: str) -> None:
        self.url = url


def said(url: str = "http://a", *, boot: str = "1", steps: int = 0, **parts: Any) -> NodeSnapshot:
    work = {"steps": {"decode": steps}, "tokens": steps, "compute_ms": 10.0 * steps, "queue_ms": 0.0}
    status = {"boot_id": boot, "state": "ready", "work": work}
    sessions = {"sessions": [{"id": boot}], "stats": {}, "limits": {}}
    return NodeSnapshot(url, **({"status": status, "sessions": sessions, "error": None, "state": "ready"} | parts))


def silent(url: str = "http://a") -> NodeSnapshot:
    return said(url, status=None, sessions=None, error=f"{url} is silent", state="unreachable")


class Mesh:
    """Answers the fetches of a cache one after the other, and counts them."""

    def __init__(self, clock: Clock, *answers: list[NodeSnapshot]) -> None:
        self.answers = list(answers)
        self.asked = 0
        self.hold: threading.Event | None = None
        self.asking = threading.Event()
        self.cache = SnapshotCache(clock=clock, fetch=self.fetch)

    def fetch(self, clients: Sequence[Any]) -> list[NodeSnapshot]:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        hold = self.hold
        self.asking.set()
        if hold is not None:
            assert hold.wait(10)
        return answer

    def look(self, *urls: str) -> Any:
        return self.cache.look([Asked(url) for url in urls or ("http://a",)])  # type: ignore[misc]


def test_a_look_is_shared_until_it_is_old(clock: Clock) -> None:
    mesh = Mesh(clock, [said()])
    mesh.look()
    clock.advance(FRESH_SECONDS * 0.9)
    mesh.look()
    assert mesh.asked == 1
    clock.advance(FRESH_SECONDS * 0.1)
    mesh.look()
    assert mesh.asked == 2


def test_other_nodes_are_asked_anew(clock: Clock) -> None:
    mesh = Mesh(clock, [said()], [said("http://b")])
    mesh.look()
    assert mesh.look("http://b")[0].url == "http://b"


def test_many_who_look_at_once_share_one_fetch(clock: Clock) -> None:
    mesh = Mesh(clock, [said()])
    mesh.hold = threading.Event()
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(len(mesh.look()))) for _ in range(8)]
    for thread in threads:
        thread.start()
    mesh.hold.set()
    for thread in threads:
        thread.join(10)
    assert found == [1] * 8
    assert mesh.asked == 1


def test_after_a_change_nobody_is_given_what_was_asked_before_it(clock: Clock) -> None:
    before, after = said(boot="before"), said(boot="after")
    mesh = Mesh(clock, [before], [after])
    mesh.hold = release = threading.Event()
    slow = threading.Thread(target=mesh.look)
    slow.start()
    assert mesh.asking.wait(10)
    mesh.cache.forget()
    mesh.hold = None
    seen = mesh.look()[0].now  # does not wait for the fetch that is under way
    release.set()
    slow.join(10)
    assert seen is after


def test_a_fetch_that_fails_is_the_failure_of_who_fetched_and_the_next_look_tries_again(clock: Clock) -> None:
    mesh = Mesh(clock, [said()])
    good, calls = mesh.cache._fetch, []

    def fail_once(clients: Any) -> list[NodeSnapshot]:
        calls.append(1)
        if len(calls) == 1:
            raise OSError("no more files")
        return good(clients)

    mesh.cache._fetch = fail_once
    with pytest.raises(OSError, match="no more files"):
        mesh.look()
    assert mesh.look()[0].url == "http://a"


def test_a_silent_node_is_known_by_what_it_said_last_and_how_long_ago(clock: Clock) -> None:
    mesh = Mesh(clock, [said()], [silent()])
    assert (mesh.look()[0].is_stale, mesh.look()[0].age) == (False, 0.0)
    clock.advance(30)
    seen = mesh.look()[0]
    assert (seen.now.status, seen.now.state, seen.is_stale, seen.age) == (None, "unreachable", True, 30.0)
    assert seen.known.entries == [{"id": "1"}]
    assert seen.known.error == "http://a is silent"


def test_a_node_that_was_never_heard_has_no_age(clock: Clock) -> None:
    seen = Mesh(clock, [silent()]).look()[0]
    assert (seen.age, seen.known.status, seen.is_stale, seen.pace) == (None, None, True, None)


def test_sessions_of_a_nodes_last_life_are_forgotten(clock: Clock) -> None:
    mesh = Mesh(clock, [said(boot="1")], [said(boot="2", sessions=None, error="no list")])
    mesh.look()
    clock.advance(10)
    assert mesh.look()[0].known.sessions is None


def test_nodes_that_left_the_mesh_are_forgotten(clock: Clock) -> None:
    mesh = Mesh(clock, [said()], [said("http://b")], [silent()])
    mesh.look()
    mesh.look("http://b")
    assert mesh.look()[0].age is None


def test_the_pace_is_taken_over_the_looks_of_the_last_minute(clock: Clock) -> None:
    mesh = Mesh(clock, [said(steps=0)], [said(steps=1000)], [said(steps=1100)])
    assert mesh.look()[0].pace is None
    clock.advance(100)
    assert mesh.look()[0].pace.steps_per_second == 10
    clock.advance(50)
    pace = mesh.look()[0].pace
    assert (pace.steps_per_second, pace.compute_ms) == (2, 10)


def test_a_restart_begins_a_new_pace(clock: Clock) -> None:
    mesh = Mesh(clock, [said(steps=50)], [said(steps=900, boot="2")])
    mesh.look()
    clock.advance(10)
    assert mesh.look()[0].pace is None


def test_what_is_remembered_of_a_node_is_bounded(clock: Clock) -> None:
    mesh = Mesh(clock, [said()])
    for _ in range(3 * REMEMBERED_MARKS):
        mesh.look()
        clock.advance(FRESH_SECONDS)
    assert len(mesh.cache._memory["http://a"].marks) == REMEMBERED_MARKS
