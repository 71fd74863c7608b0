from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
from django.core.cache.backends.locmem import LocMemCache

from generation.directory import (
    FRESH_SECONDS,
    LINK_SECONDS,
    LONGEST_LINK_SECONDS,
    STALE_SECONDS,
    NodeDirectory,
)
from generation.errors import NoRoute
from generation.penalties import FIRST_SECONDS
from generation.route import Hop, Route, RouteNode
from nodes import shared_snapshots
from nodes.errors import Busy, NodeUnreachable
from nodes.fleet import NodeFleet
from nodes.layers import LayerRange
from nodes.live import NodeSnapshot
from nodes.shared_snapshots import SharedSnapshots
from nodes.snapshots import SnapshotCache
from nodes.wire import Timings
from tests.conftest import Clock
from tests.processes import wait_until

STATUS = {
    "state": "ready",
    "fingerprint": "m",
    "dtype": "float32",
    "start_layer": 0,
    "end_layer": 2,
    "n_layers": 2,
    "context_length": 64,
    "boot_id": "one",
    "busy_sessions": 0,
    "max_sessions": 4,
}
A, B = "http://a", "http://b"


class FakeClient:
    """Says a status and counts how often it was asked. Holds its answer back while `hold` is not set."""

    def __init__(self, url: str = A, **status: Any) -> None:
        self.url = url
        self.answer: dict[str, Any] | None = {**STATUS, **status}
        self.asked = 0
        self.hold: threading.Event | None = None

    def status(self, *, timeout: float) -> dict[str, Any]:
        self.asked += 1
        if self.hold is not None:
            assert self.hold.wait(10)
        if self.answer is None:
            raise NodeUnreachable()
        return self.answer

    def sessions(self, *, timeout: float) -> dict[str, Any]:
        raise AssertionError("no plan needs the sessions")


def directory(*clients: FakeClient, clock: Clock) -> NodeDirectory:
    return NodeDirectory(list(clients), clock=clock)  # type: ignore[arg-type]


def one(nodes: NodeDirectory, url: str = A) -> RouteNode:
    (found,) = [node for node in nodes.ready() if node.url == url]
    return found


def urls(found: Sequence[RouteNode]) -> list[str]:
    return [node.url for node in found]


def snapshot(url: str, status: dict[str, Any] | None) -> NodeSnapshot:
    return NodeSnapshot(url, status, None, None, "ready" if status else "unreachable")


def test_only_nodes_that_take_sessions_are_ready(clock: Clock) -> None:
    assert urls(directory(FakeClient(A), FakeClient(B, state="draining"), clock=clock).ready()) == [A]


def test_old_news_are_used_at_once_and_renewed_in_the_background(clock: Clock) -> None:
    client = FakeClient()
    nodes = directory(client, clock=clock)
    nodes.ready()
    clock.advance(FRESH_SECONDS * 0.9)
    nodes.ready()
    assert client.asked == 1
    client.hold = threading.Event()
    client.answer = {**STATUS, "state": "draining"}
    clock.advance(FRESH_SECONDS)
    assert urls(nodes.ready()) == [A], "and the node that is asked has not answered yet"
    client.hold.set()
    wait_until(lambda: not nodes.ready(), 5, "the news never came")
    assert client.asked == 2 or client.asked == 3  # the last look may have asked once more, since nobody was ready


def test_a_plan_does_not_wait_for_a_node_that_hangs_while_others_are_known(clock: Clock) -> None:
    well, hanging = FakeClient(A), FakeClient(B)
    nodes = directory(well, hanging, clock=clock)
    nodes.ready()
    hanging.hold = threading.Event()
    clock.advance(FRESH_SECONDS + 1)
    assert urls(nodes.ready()) == [A, B]
    hanging.hold.set()


def test_fresh_asks_again_and_waits(clock: Clock) -> None:
    client = FakeClient()
    nodes = directory(client, clock=clock)
    nodes.ready()
    client.answer = {**STATUS, "state": "draining"}
    clock.advance(0.1)
    assert nodes.ready(fresh=True) == []
    assert client.asked == 2


def test_many_who_ask_at_once_share_one_fetch(clock: Clock) -> None:
    client = FakeClient()
    client.hold = threading.Event()
    nodes = directory(client, clock=clock)
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(len(nodes.ready()))) for _ in range(8)]
    for thread in threads:
        thread.start()
    client.hold.set()
    for thread in threads:
        thread.join()
    assert found == [1] * 8
    assert client.asked == 1


def test_a_silent_node_is_avoided_and_after_a_while_not_used_at_all(clock: Clock) -> None:
    client = FakeClient()
    nodes = directory(client, clock=clock)
    nodes.ready()
    client.answer = None
    nodes.learn([snapshot(A, None)])
    assert one(nodes).faults == 1
    assert nodes.ready(silent=False) == [], "who asks whether the mesh is well wants none of these"
    nodes.learn([snapshot(A, STATUS)])
    assert one(nodes).faults == 0
    clock.advance(STALE_SECONDS)
    assert nodes.ready() == []


def test_what_the_keeper_hears_needs_no_question_of_its_own(clock: Clock) -> None:
    client = FakeClient()
    nodes = directory(client, clock=clock)
    nodes.ready()
    nodes.learn([snapshot(A, {**STATUS, "busy_sessions": 3})])
    assert one(nodes).load == 3
    assert client.asked == 1


def test_what_was_asked_before_is_no_news(clock: Clock) -> None:
    client = FakeClient()
    nodes = directory(client, clock=clock)
    nodes.ready()
    clock.advance(1)
    nodes.learn([snapshot(A, {**STATUS, "busy_sessions": 3})], [1.5])
    assert one(nodes).load == 0, "this worker asked half a second later"
    nodes.learn([snapshot(A, {**STATUS, "busy_sessions": 3})], [0.5])
    assert one(nodes).load == 3


def test_a_node_that_failed_is_not_back_by_what_it_was_asked_before(clock: Clock) -> None:
    client = FakeClient()
    nodes = directory(client, clock=clock)
    nodes.ready()
    client.answer = None
    clock.advance(1)
    nodes.failed(A)
    clock.advance(0.5)
    nodes.learn([snapshot(A, STATUS)], [0.6])
    assert nodes.ready() == []
    nodes.learn([snapshot(A, STATUS)], [0.4])
    assert one(nodes).url == A


def test_routes_are_made_of_what_this_worker_asked_and_not_of_what_lies_in_the_shared_cache(clock: Clock) -> None:
    cache = LocMemCache("routes", {})
    cache.clear()
    nodes, asked = directory(FakeClient(), FakeClient(B), clock=clock), []

    def ask(clients: Sequence[Any]) -> list[NodeSnapshot]:
        asked.append([client.url for client in clients])
        return [NodeSnapshot(client.url, client.answer, {"sessions": []}, None, "ready") for client in clients]

    seen = SnapshotCache(clock=clock, fetch=ask, shared=SharedSnapshots(cache, clock=clock))
    nodes.ready()
    clock.advance(1)
    forged = {**STATUS, "state": "draining", "boot_id": "forged"}
    name = f"snapshots:first:{shared_snapshots._digest(A)}"
    cache.set(name, {"at": clock() + 60, "status": forged, "sessions": {"sessions": []}})
    looked = seen.look(nodes.clients)
    nodes.learn_seen(looked)
    assert (asked, looked[0].now.status) == ([[B]], forged), "the page shows it"
    assert urls(nodes.ready()) == [A, B]
    assert [nodes._news[url].status["boot_id"] for url in (A, B)] == ["one", "one"]
    assert [nodes._news[url].heard_at for url in (A, B)] == [clock() - 1, clock()]


def test_a_look_that_pages_share_is_as_old_as_its_asking_for_routes_too(clock: Clock) -> None:
    nodes = directory(FakeClient(), clock=clock)
    seen = SnapshotCache(clock=clock, fetch=lambda _: [snapshot(A, STATUS)])
    nodes.ready()
    clock.advance(1)
    seen.look(nodes.clients)
    clock.advance(0.5)
    nodes.failed(A)
    clock.advance(0.5)
    nodes.learn_seen(seen.look(nodes.clients))
    assert A not in nodes._news
    clock.advance(1)
    nodes.learn_seen(seen.look(nodes.clients))
    assert A in nodes._news


def test_news_of_the_keeper_are_believed_no_longer_than_own_ones(clock: Clock) -> None:
    client = FakeClient()
    nodes = directory(client, clock=clock)
    nodes.learn([snapshot(A, STATUS)], [1.5])
    client.answer = None
    clock.advance(STALE_SECONDS - 1.5)
    assert nodes.ready() == []


def test_a_failed_node_is_in_no_plan_until_it_is_heard_and_then_for_a_while_the_last_choice(clock: Clock) -> None:
    client = FakeClient()
    nodes = directory(client, clock=clock)
    nodes.ready()
    nodes.failed(A)
    assert client.asked == 1
    (node,) = nodes.ready()
    assert client.asked == 2
    assert node.faults == 1
    nodes.measured(A, 2, 1, 5.0, Timings())
    assert one(nodes).faults == 0, "a good step forgives"
    nodes.failed(A)
    nodes.ready()
    clock.advance(FIRST_SECONDS)
    assert one(nodes).faults == 0


def test_of_nodes_that_left_nothing_is_remembered(clock: Clock) -> None:
    fleet = NodeFleet([FakeClient(A)], FakeClient)  # type: ignore[list-item, arg-type]
    nodes = NodeDirectory(fleet, clock=clock)
    nodes.came(B)
    nodes.failed(A)
    clock.advance(STALE_SECONDS + 1)
    nodes.gone(B)
    nodes.ready(fresh=True)
    assert set(nodes._forgotten) == {B}
    nodes.learn([snapshot(B, STATUS)], [0.1])
    assert B not in nodes._news, "it said so before its good-bye"
    clock.advance(STALE_SECONDS + 1)
    nodes.ready(fresh=True)
    assert not nodes._forgotten


def test_a_node_that_changed_is_not_held_guilty(clock: Clock) -> None:
    nodes = directory(FakeClient(), clock=clock)
    nodes.ready()
    nodes.forget(A)
    assert one(nodes).faults == 0


def test_load_is_that_of_others_as_said_and_of_this_worker_as_it_is(clock: Clock) -> None:
    client = FakeClient(busy_sessions=2)
    nodes = directory(client, clock=clock)
    route = Route((Hop(A, LayerRange(0, 2)),), "m")
    assert one(nodes).load == 2
    nodes.take(route)
    assert (one(nodes).load, one(nodes).is_full) == (3, False)
    nodes.take(route)
    assert (one(nodes).load, one(nodes).is_full) == (4, True)
    nodes.learn([snapshot(A, {**STATUS, "busy_sessions": 4})])
    assert one(nodes).load == 4, "two of them are this worker's, and were heard as well"
    nodes.leave(route)
    nodes.leave(route)
    assert one(nodes).load == 2


def test_a_node_that_refused_for_want_of_slots_is_full_until_the_next_news(clock: Clock) -> None:
    nodes = directory(FakeClient(), clock=clock)
    nodes.ready()
    nodes.full(A)
    assert one(nodes).is_full
    nodes.learn([snapshot(A, STATUS)])
    assert not one(nodes).is_full


def test_costs_are_measured_else_said_else_those_of_the_others(clock: Clock) -> None:
    nodes = directory(FakeClient(A, layer_ms=7.0), FakeClient(B), clock=clock)
    assert (one(nodes, A).layer_ms, one(nodes, B).layer_ms) == (7.0, 7.0)
    nodes.measured(A, 2, 1, 10.0, Timings(0.0, 8.0))
    assert (one(nodes, A).layer_ms, one(nodes, A).hop_ms) == (4.0, 2.0)
    assert (one(nodes, B).layer_ms, one(nodes, B).hop_ms) == (4.0, 2.0)


def test_a_node_that_names_no_times_counts_as_nothing_once_it_was_measured(clock: Clock) -> None:
    nodes = directory(FakeClient(A, layer_ms=7.0), FakeClient(B), clock=clock)
    nodes.measured(B, 2, 1, 10.0, Timings())
    assert (one(nodes, B).layer_ms, one(nodes, B).hop_ms) == (0.0, 10.0)


@pytest.mark.parametrize("said", [float("nan"), float("inf"), 10**400, 1e300, -1.0, 0, "fast", None, True])
def test_a_node_cannot_make_itself_the_cheapest_by_nonsense(clock: Clock, said: Any) -> None:
    node = one(directory(FakeClient(layer_ms=said), clock=clock))
    assert node.layer_ms == 1.0


@pytest.mark.parametrize("said", [-3, "none", None, 2.5, 10**400])
def test_nonsense_about_sessions_counts_as_none(clock: Clock, said: Any) -> None:
    node = one(directory(FakeClient(busy_sessions=said, max_sessions=said), clock=clock))
    assert (node.load, node.is_full) == (0, False)
    assert node.cost_ms(2) < 10


@pytest.mark.parametrize("end", [float("inf"), 10**400, 1 << 70])
def test_a_node_that_claims_nonsense_keeps_no_other_from_being_heard(clock: Clock, end: Any) -> None:
    nodes = directory(FakeClient(A, end_layer=end), FakeClient(B), clock=clock)
    assert urls(nodes.ready()) == [B]


def test_a_node_that_started_anew_is_measured_anew(clock: Clock) -> None:
    nodes = directory(FakeClient(), clock=clock)
    nodes.ready()
    nodes.measured(A, 2, 1, 10.0, Timings(0.0, 8.0))
    nodes.learn([snapshot(A, {**STATUS, "boot_id": "two"})])
    assert one(nodes).layer_ms == 1.0


def test_a_removed_node_is_in_no_plan_until_it_is_brought_back(clock: Clock) -> None:
    nodes = directory(FakeClient(A), FakeClient(B), clock=clock)
    nodes.set_removed({A, "http://of-another-mesh"})
    assert urls(nodes.ready()) == [B]
    nodes.set_removed(set())
    assert urls(nodes.ready()) == [A, B]


def test_announced_nodes_come_and_go(clock: Clock) -> None:
    fleet = NodeFleet([FakeClient(A)], lambda url: FakeClient(url))  # type: ignore[list-item,arg-type,return-value]
    nodes = NodeDirectory(fleet, clock=clock)
    assert urls(nodes.ready()) == [A]
    fleet.add(B)
    assert urls(nodes.ready(fresh=True)) == [A, B]
    nodes.gone(B)
    assert urls(nodes.ready()) == [A]
    assert nodes.client(B).url == B, "answers on it still end there"
    nodes.ready(fresh=True)
    assert set(nodes._built) == {A}, "nothing is kept of nodes that come and go for ever"


def test_a_node_that_is_new_is_asked_for_the_next_plan_and_its_later_beats_change_nothing(clock: Clock) -> None:
    clients = {A: FakeClient(A), B: FakeClient(B)}
    fleet = NodeFleet([clients[A]], lambda url: clients[url])  # type: ignore[list-item,arg-type,return-value]
    nodes = NodeDirectory(fleet, clock=clock)
    assert urls(nodes.ready()) == [A]
    nodes.came(B)
    wait_until(lambda: urls(nodes.ready()) == [A, B], 10, "the new node is not asked before news are due")
    asked = clients[B].asked
    nodes.came(B)
    nodes.ready()
    assert clients[B].asked == asked


def test_a_stranger_is_no_route(clock: Clock) -> None:
    with pytest.raises(NoRoute, match="http://x"):
        directory(FakeClient(), clock=clock).client("http://x")


def test_a_fetch_that_breaks_keeps_nobody_waiting(clock: Clock) -> None:
    def broken(clients: Any) -> list[NodeSnapshot]:
        raise RuntimeError("no thread left")

    nodes = NodeDirectory([FakeClient()], clock=clock, fetch=broken)  # type: ignore[list-item]
    assert nodes.ready() == []


class HandingClient(FakeClient):
    """One that could be a tail."""

    def __init__(self, url: str, **status: Any) -> None:
        super().__init__(url, **{"boot_id": f"boot of {url}", "supports_handover": True, **status})

    def result(self) -> None:
        raise AssertionError("the directory asks for no results")


def handing(*clients: FakeClient, clock: Clock) -> NodeDirectory:
    nodes = directory(*clients, clock=clock)
    nodes.ready(fresh=True)
    return nodes


def test_steps_can_be_handed_over_when_every_node_says_that_it_takes_part(clock: Clock) -> None:
    able = HandingClient(A), HandingClient(B)
    assert handing(*able, clock=clock).hand_over([A, B]) == [f"boot of {A}", f"boot of {B}"]
    for unable in (
        HandingClient(B, supports_handover=False),
        HandingClient(B, supports_handover="yes"),
        HandingClient(B, boot_id=None),
        FakeClient(B, supports_handover=True),  # in the head's own process: nobody can call it
    ):
        assert handing(able[0], unable, clock=clock).hand_over([A, B]) is None
    nodes = handing(*able, clock=clock)
    nodes.forget(B)
    assert nodes.hand_over([A, B]) is None, "what it said does not count any more"


def test_two_nodes_that_did_not_reach_each_other_are_left_alone_for_longer_each_time(clock: Clock) -> None:
    nodes = handing(HandingClient(A), HandingClient(B), clock=clock)
    held = []
    for _ in range(8):
        for _ in range(5):  # as many generations meet it
            nodes.hand_over_failed([A, B], B)
        begun = clock.now
        while nodes.hand_over([A, B]) is None:
            clock.advance(1)
        held.append(clock.now - begun)
    assert held[:3] == [LINK_SECONDS, 2 * LINK_SECONDS, 4 * LINK_SECONDS]
    assert held[-2:] == [LONGEST_LINK_SECONDS] * 2
    nodes.handed_over([A, B])
    nodes.hand_over_failed([A, B], B)
    clock.advance(LINK_SECONDS)
    assert nodes.hand_over([A, B]) is not None, "a step that was handed over forgives"


def test_a_way_that_failed_says_nothing_of_the_other_direction_or_of_others(clock: Clock) -> None:
    nodes = handing(HandingClient(A), HandingClient(B), clock=clock)
    nodes.hand_over_failed([A, B], B)
    assert nodes.hand_over([A, B]) is None
    assert nodes.hand_over([B, A]) is not None
    nodes.hand_over_failed([B, A], B)  # from the head to the first node
    assert nodes.hand_over([B, A]) is None


def test_without_a_thread_what_is_known_will_do_and_the_next_look_asks(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = FakeClient()
    nodes = directory(client, clock=clock)
    nodes.ready()
    clock.advance(FRESH_SECONDS + 0.1)

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert urls(nodes.ready()) == [A]
        with pytest.raises(Busy):
            nodes.ready(fresh=True)
    assert client.asked == 1
    assert urls(nodes.ready(fresh=True)) == [A]
    assert client.asked == 2


def test_many_nodes_are_asked_less_often(clock: Clock) -> None:
    looks: list[int] = []

    def fetch(clients: Any) -> list[NodeSnapshot]:
        looks.append(len(clients))
        return [NodeSnapshot(client.url, client.status(timeout=1), None, None, "ready") for client in clients]

    def looked_after(count: int, seconds: float) -> bool:
        """Whether the second of two plans so far apart asks all these nodes."""
        looks.clear()
        clients = [FakeClient(f"http://{number}") for number in range(count)]
        nodes = NodeDirectory(clients, clock=clock, fetch=fetch)  # type: ignore[arg-type]
        nodes.ready()
        clock.advance(seconds)
        nodes.ready()
        wait_until(lambda: nodes._flight is None)
        return len(looks) == 2

    assert looked_after(400, FRESH_SECONDS + 0.1)
    assert not looked_after(1000, 4.9)
    assert looked_after(1000, 5.1)
    assert looked_after(5000, 7.6), "news of 15 s count no more"
