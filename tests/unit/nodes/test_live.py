from __future__ import annotations

import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest

from nodes import live
from nodes.client import HttpNodeClient
from nodes.errors import BadRequest, NotFound
from tests.unit.nodes.conftest import MakeNode
from tests.unit.nodes.fake_node import FakeNode, session_id

Connect = Callable[..., list[HttpNodeClient]]
A, B, C = session_id("a"), session_id("b"), session_id("c")


class Stub:
    """A client that answers what it is given, or raises it, or calls it."""

    def __init__(self, url: str, status: Any = None, sessions: Any = None) -> None:
        self.url = url
        self._answers = {"status": status, "sessions": sessions}

    def status(self, *, timeout: float) -> Any:
        return self._answer("status")

    def sessions(self, *, timeout: float) -> Any:
        return self._answer("sessions")

    def _answer(self, name: str) -> Any:
        answer = self._answers[name]
        if isinstance(answer, Exception):
            raise answer
        return answer() if callable(answer) else answer


def test_snapshots_stand_in_the_order_of_the_clients(front: FakeNode, back: FakeNode, clients: Connect) -> None:
    front.hold(A)
    snapshots = live.fetch(clients(back, front))
    assert [snapshot.url for snapshot in snapshots] == [back.url, front.url]
    assert [snapshot.layers for snapshot in snapshots] == ["15:30", "0:15"]
    assert [snapshot.state for snapshot in snapshots] == ["ready", "ready"]
    assert [[entry["id"] for entry in snapshot.entries] for snapshot in snapshots] == [[], [A]]
    assert snapshots[1].slots == (1, 8)
    assert [snapshot.error for snapshot in snapshots] == [None, None]


def test_a_draining_node_is_seen_as_draining(front: FakeNode, clients: Connect) -> None:
    front.state = "draining"
    assert live.fetch(clients(front))[0].state == "draining"


def test_a_dead_node_is_unreachable_and_named_in_its_error(front: FakeNode, dead: str, clients: Connect) -> None:
    gone, well = live.fetch(clients(dead, front))
    assert (gone.state, gone.status, gone.sessions) == ("unreachable", None, None)
    assert gone.error is not None and gone.error.startswith(f"{dead} cannot be reached: ")
    assert gone.cause.startswith("cannot be reached: ")
    assert (gone.layers, gone.entries, gone.limits, gone.stats) == ("", [], {}, {})
    assert well.error is None


def test_a_hanging_node_costs_no_more_than_the_deadline(front: FakeNode, make_node: MakeNode, clients: Connect) -> None:
    hanging = make_node(hanging=True)
    begun = monotonic()
    silent, well = live.fetch(clients(hanging, front), deadline=0.5)
    # The node would hang for ever; the margin is for a busy machine.
    assert monotonic() - begun < 5
    assert silent.state == "unreachable"
    assert silent.error == f"{hanging.url} did not answer within 0.5 s."
    assert well.state == "ready"


def test_many_hanging_nodes_cost_one_deadline_together() -> None:
    release = threading.Event()
    crowd = [Stub(f"http://{number}", status=release.wait) for number in range(50)]
    begun = monotonic()
    snapshots = live.fetch(crowd, deadline=0.3)
    assert monotonic() - begun < 5
    assert {snapshot.state for snapshot in snapshots} == {"unreachable"}
    release.set()


def test_what_was_heard_before_the_deadline_is_kept() -> None:
    release = threading.Event()
    snapshot = live.fetch([Stub("http://n", {"state": "ready", "layers": "3:7"}, release.wait)], deadline=0.2)[0]
    release.set()
    assert (snapshot.state, snapshot.layers, snapshot.sessions) == ("ready", "3:7", None)
    assert snapshot.error == "http://n did not answer within 0.2 s."


def test_an_abandoned_thread_is_a_daemon_and_sends_nothing_more() -> None:
    release, asked = threading.Event(), threading.Event()
    running: list[threading.Thread] = []

    def slow() -> dict[str, Any]:
        running.append(threading.current_thread())
        release.wait()
        return {"state": "ready"}

    def sessions() -> dict[str, Any]:
        asked.set()
        return {"sessions": []}

    live.fetch([Stub("http://n", slow, sessions)], deadline=0.2)
    assert running[0].daemon
    release.set()
    running[0].join(10)
    assert not running[0].is_alive()
    assert not asked.is_set()


def test_a_wrong_secret_is_said(front: FakeNode, clients: Connect) -> None:
    snapshot = live.fetch(clients(front, secret="not the secret of this mesh"))[0]
    assert snapshot.state == "unreachable"
    assert snapshot.error == f"{front.url}: The mesh secret is missing or wrong."


def test_an_unforeseen_error_of_a_client_is_an_error_of_its_node_at_once(caplog: Any) -> None:
    begun = monotonic()
    snapshot = live.fetch([Stub("http://n", RuntimeError("details for the log only"))], deadline=60)[0]
    assert monotonic() - begun < 30
    assert (snapshot.state, snapshot.error) == ("unreachable", "http://n: RuntimeError")
    assert "details for the log only" in caplog.text


@pytest.mark.parametrize("answer", [{}, {"sessions": {}}, {"sessions": ["x"]}, {"sessions": [], "stats": []}])
def test_sessions_of_another_shape_are_an_error_and_the_node_keeps_its_state(
    front: FakeNode, clients: Connect, answer: Any
) -> None:
    front.broken["/sessions"] = answer
    snapshot = live.fetch(clients(front))[0]
    assert (snapshot.state, snapshot.entries) == ("ready", [])
    assert snapshot.error == f"{front.url} answered something else than a list of sessions."


def test_no_nodes_are_no_snapshots() -> None:
    assert live.fetch([]) == []


def test_f03_workers_with_clients_of_their_own_see_the_same_sessions(
    front: FakeNode, back: FakeNode, clients: Connect
) -> None:
    """What is shown comes from the nodes, never from a worker's memory."""
    for number in range(6):
        front.hold(session_id(str(number)))
        back.hold(session_id(str(number)))
    workers = [clients(front, back) for _ in range(3)]
    seen = {tuple(live.by_session(live.fetch(worker))) for worker in workers for _ in range(3)}
    assert [len(sessions) for sessions in seen] == [6]


def test_sessions_are_grouped_over_the_nodes_with_the_oldest_first(
    front: FakeNode, back: FakeNode, clients: Connect
) -> None:
    front.hold(A, age=3)
    front.hold(B, age=90)
    back.hold(A, age=3)
    held = live.by_session(live.fetch(clients(front, back)))
    assert list(held) == [B, A]
    assert [snapshot.url for snapshot, _ in held[A]] == [front.url, back.url]


def test_sessions_are_evicted_on_every_node_that_holds_them(front: FakeNode, back: FakeNode, clients: Connect) -> None:
    front.hold(A)
    front.hold(B)
    back.hold(A)
    results = live.evict(clients(front, back), ids=[A, C, A])
    assert results == [
        live.NodeEviction(front.url, [A], [C]),
        live.NodeEviction(back.url, [A], [C]),
    ]
    assert (list(front.sessions), list(back.sessions)) == ([B], [])


def test_idle_and_all_choose_on_the_node(front: FakeNode, clients: Connect) -> None:
    front.hold(A, idle=100)
    front.hold(B, idle=1)
    assert live.evict(clients(front), idle_longer_than=60)[0].evicted == [A]
    assert live.evict(clients(front), everything=True)[0].evicted == [B]


def test_an_eviction_can_be_for_one_node(front: FakeNode, back: FakeNode, clients: Connect) -> None:
    front.hold(A)
    back.hold(A)
    assert [result.url for result in live.evict(clients(front, back), everything=True, node=back.url)] == [back.url]
    assert (list(front.sessions), list(back.sessions)) == ([A], [])


def test_an_eviction_does_what_can_be_done_and_names_the_rest(
    front: FakeNode, dead: str, make_node: MakeNode, clients: Connect
) -> None:
    hanging = make_node(hanging=True)
    front.hold(A)
    begun = monotonic()
    gone, silent, well = live.evict(clients(dead, hanging, front), everything=True, deadline=0.5)
    assert monotonic() - begun < 5
    assert gone.error is not None and dead in gone.error
    assert silent.error == f"{hanging.url} did not answer within 0.5 s."
    assert (well.evicted, well.error) == ([A], None)


@pytest.mark.parametrize("selection", [{}, {"ids": [A], "everything": True}, {"ids": [], "idle_longer_than": 1.0}])
def test_an_eviction_needs_exactly_one_selection(selection: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        live.evict([], **selection)
    with pytest.raises(BadRequest):
        live.would_evict([], **selection)


@pytest.mark.parametrize("selection", [{"ids": [A, C]}, {"idle_longer_than": 60.0}, {"everything": True}])
def test_a_rehearsal_says_what_the_eviction_then_does(
    front: FakeNode, back: FakeNode, dead: str, clients: Connect, selection: dict[str, Any]
) -> None:
    front.hold(A, idle=100)
    front.hold(B, idle=100, busy=True)
    back.hold(B, idle=1)
    connected = clients(front, back, dead)
    rehearsed = live.would_evict(live.fetch(connected), **selection)
    assert len(front.sessions) == 2
    done = live.evict(connected, **selection)
    assert [(result.evicted, result.unknown) for result in rehearsed] == [
        (result.evicted, result.unknown) for result in done
    ]
    assert [bool(result.error) for result in rehearsed] == [False, False, True]


def test_nodes_are_chosen_by_url_with_or_without_a_slash() -> None:
    one, two = Stub("http://one"), Stub("http://two")
    assert live.choose([one, two], []) == [one, two]
    assert live.choose([one, two], ["http://two/", "http://one"]) == [one, two]
    with pytest.raises(NotFound, match="http://three is not a node of this mesh; its nodes: http://one, http://two"):
        live.choose([one, two], ["http://three"])


def test_a_change_is_confirmed_or_says_why_not(front: FakeNode, dead: str, clients: Connect) -> None:
    well, gone = clients(front, dead)
    assert live.change(well, lambda one: one.set_draining(True, timeout=5)) is None
    assert front.state == "draining"
    front.refusal = "Not now."
    problem = live.change(well, lambda one: one.set_limits({"max_sessions": 3}, timeout=5))
    assert problem == f"{front.url}: Not now."
    assert dead in (live.change(gone, lambda one: one.set_draining(True, timeout=5)) or "")


def test_a_change_on_a_hanging_node_comes_back_by_the_deadline(make_node: MakeNode, clients: Connect) -> None:
    hanging = make_node(hanging=True)
    problem = live.change(clients(hanging)[0], lambda one: one.set_draining(True, timeout=60), deadline=0.3)
    assert problem == f"{hanging.url} did not answer within 0.3 s."
