"""What holds for each page of nodes, sessions and mesh: who may see and do what, silent nodes, cost, no secrets."""

from __future__ import annotations

import re
from functools import partial
from time import monotonic
from typing import Any

import pytest
from django.apps import apps
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.utils import timezone

from nodes import live
from nodes.models import Node, NodeSample
from nodes.snapshots import SnapshotCache
from tests.conftest import Clock
from tests.unit.nodes.conftest import MakeNode, Mesh, SignIn
from tests.unit.nodes.fake_node import SECRET, FakeNode, session_id
from tests.unit.nodes.pages import row, text_of

A = session_id("a")
MESH, SESSIONS, NODES = "/admin/nodes/mesh/", "/admin/nodes/kvsession/", "/admin/nodes/node/"
#: Pages by the right that shows them; PK stands for the node's row.
VIEWS = {
    MESH: "view_mesh",
    f"{MESH}data.json": "view_mesh",
    SESSIONS: "view_kvsession",
    f"{SESSIONS}data.json": "view_kvsession",
    NODES: "view_node",
    f"{NODES}PK/change/": "view_node",
}
#: URLs that act, by the right to do so.
ACTS = {
    f"{SESSIONS}evict/": "evict_kvsession",
    f"{NODES}PK/limits/": "limit_node",
    **{f"{NODES}PK/{name}/": "drain_node" for name in ("drain", "undrain", "remove", "restore")},
}
FORM = {"session": A, "max_sessions": "3", "confirmed": "yes"}
RIGHTS = sorted({*VIEWS.values(), *ACTS.values()})

pytestmark = pytest.mark.django_db


@pytest.fixture
def node(front: FakeNode, mesh: Mesh) -> Node:
    """The row of a node that runs and holds a session."""
    mesh(front)
    front.hold(A)
    return row(front)


def at(url: str, node: Node) -> str:
    return url.replace("PK", str(node.pk))


@pytest.mark.parametrize("url", [*VIEWS, *ACTS])
def test_the_anonymous_are_sent_to_the_login_page(node: Node, front: FakeNode, url: str) -> None:
    for response in (Client().get(at(url, node)), Client().post(at(url, node), FORM)):
        assert response.url.startswith("/admin/login/")
    assert front.requests == []


@pytest.mark.parametrize("url", VIEWS)
def test_a_page_is_for_those_with_its_right_alone(sign_in: SignIn, node: Node, front: FakeNode, url: str) -> None:
    client = sign_in(*(right for right in RIGHTS if right != VIEWS[url]))
    assert client.get(at(url, node)).status_code == 403
    assert client.get(at(url, node), {"fragment": "1"}).status_code == 403
    assert front.requests == []


@pytest.mark.parametrize("url", VIEWS)
def test_its_right_alone_shows_a_page(sign_in: SignIn, node: Node, url: str) -> None:
    assert sign_in(VIEWS[url]).get(at(url, node)).status_code == 200


@pytest.mark.parametrize("url", ACTS)
def test_acting_needs_its_own_right(sign_in: SignIn, node: Node, front: FakeNode, url: str) -> None:
    client = sign_in(*(right for right in RIGHTS if right != ACTS[url]))
    for form in (FORM, {}):
        assert client.post(at(url, node), form).status_code == 403
    assert front.requests == []
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize("url", ACTS)
def test_its_right_alone_acts(sign_in: SignIn, node: Node, url: str) -> None:
    response = sign_in(ACTS[url]).post(at(url, node), FORM)
    assert (response.status_code, response.url) == (302, "/admin/")
    assert LogEntry.objects.count() == 1


@pytest.mark.parametrize("url", ACTS)
def test_e07_acting_by_link_is_refused(sign_in: SignIn, node: Node, front: FakeNode, url: str) -> None:
    assert sign_in(superuser=True).get(at(url, node), FORM).status_code == 405
    assert front.requests == []


@pytest.mark.parametrize("url", ACTS)
def test_e07_acting_without_a_csrf_token_is_refused(sign_in: SignIn, node: Node, front: FakeNode, url: str) -> None:
    assert sign_in(superuser=True, csrf=True).post(at(url, node), FORM).status_code == 403
    assert front.requests == []


@pytest.mark.parametrize("url", VIEWS)
def test_e07_looking_changes_nothing(sign_in: SignIn, node: Node, front: FakeNode, url: str) -> None:
    client = sign_in(superuser=True)
    client.get(at(url, node))
    assert {request.split()[0] for request in front.requests} == {"GET"}
    if url != NODES:  # a stock page takes a POST for its stock actions
        assert client.post(at(url, node), FORM).status_code == 405


@pytest.mark.parametrize("url", VIEWS)
def test_no_secret_and_no_inline_script_is_in_any_page(sign_in: SignIn, node: Node, url: str) -> None:
    html = sign_in(superuser=True).get(at(url, node)).content.decode()
    assert SECRET not in html
    assert SECRET[:12] not in html
    assert [script for script in re.findall(r"<script[^>]*>", html) if "src=" not in script] == []
    assert re.findall(r'<[^>]* (?:style|on[a-z]+)="', html) == []


@pytest.mark.parametrize("url", VIEWS)
def test_a_hanging_and_a_dead_node_do_not_keep_a_page_from_coming(
    sign_in: SignIn,
    node: Node,
    front: FakeNode,
    dead: str,
    make_node: MakeNode,
    mesh: Mesh,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    url: str,
) -> None:
    # The deadline itself is that of tests/unit/nodes/test_live.py.
    impatient = SnapshotCache(clock=clock, fetch=partial(live.fetch, deadline=0.3))
    monkeypatch.setattr(apps.get_app_config("nodes"), "snapshots", impatient)
    hanging = make_node("15:30", hanging=True)
    mesh(front, hanging, dead)
    row(hanging)
    response = sign_in(superuser=True).get(at(url, node))
    # The page is here, and the node still hangs: it answers nobody until the test is over.
    assert hanging.requests == ["GET /status"]
    assert response.status_code == 200
    assert front.url.removeprefix("http://") in response.content.decode()


@pytest.mark.parametrize("url", VIEWS)
def test_the_number_of_queries_does_not_grow_with_nodes_sessions_or_samples(
    sign_in: SignIn,
    node: Node,
    front: FakeNode,
    back: FakeNode,
    mesh: Mesh,
    clock: Clock,
    url: str,
    django_assert_max_num_queries: Any,
) -> None:
    client = sign_in(*RIGHTS)

    def queries() -> int:
        clock.advance(10)
        with django_assert_max_num_queries(12) as captured:
            assert client.get(at(url, node)).status_code == 200
        return len(captured)

    queries()  # what is read once in a process does not count
    few = queries()
    for number in range(100, 150):
        front.hold(f"{number:032}")
        back.hold(f"{number:032}")
        Node.objects.create(url=f"http://other:{number}")
    NodeSample.objects.bulk_create(
        NodeSample(node=one, at=timezone.now(), sessions=1, bytes=1, evictions=1, tokens=1)
        for one in Node.objects.all()
    )
    mesh(front, back)
    row(back)
    assert queries() == few


class CrowdNode:
    """A client whose node answers at once: a mesh of hundreds needs no hundreds of servers."""

    def __init__(self, fake: FakeNode, url: str) -> None:
        self.url = url
        self._status, self._sessions = fake._status(), fake._list()

    def status(self, *, timeout: float) -> dict[str, Any]:
        return self._status

    def sessions(self, *, timeout: float) -> dict[str, Any]:
        return self._sessions


@pytest.mark.parametrize("url", VIEWS)
def test_two_hundred_nodes_with_sixteen_hundred_sessions_are_shown(
    sign_in: SignIn, front: FakeNode, monkeypatch: pytest.MonkeyPatch, record_property: Any, url: str
) -> None:
    crowd = []
    for number in range(200):
        start = 3 * (number % 10)
        front.layers = f"{start}:{start + 3}"
        front.sessions = {}
        for session in range(8):
            front.hold(f"{number // 10 * 8 + session + number % 2 * 1000:032}", past_len=100 + session)
        crowd.append(CrowdNode(front, f"http://node{number}:8001"))
    rows = Node.objects.bulk_create(
        Node(url=one.url, start_layer=3 * (number % 10), end_layer=3 * (number % 10) + 3, fingerprint="sha256:toy")
        for number, one in enumerate(crowd)
    )
    now = timezone.now().timestamp() // 60 * 60
    NodeSample.objects.bulk_create(
        NodeSample(
            node=one, at=timezone.datetime.fromtimestamp(now - 60 * back, timezone.get_default_timezone()),
            sessions=8, bytes=10**6, evictions=60 - back, tokens=1000 * (60 - back),
        )
        for one in rows
        for back in range(60)
    )  # fmt: skip
    monkeypatch.setattr("nodes.registry.node_clients", lambda: crowd)
    client = sign_in(superuser=True)
    begun = monotonic()
    response = client.get(at(url, rows[0]))
    record_property("seconds", round(monotonic() - begun, 2))
    assert response.status_code == 200
    content = response.content.decode()
    if url == MESH:
        assert content.count('data-testid="node-row"') == 200
        assert "Sessions held, 200 nodes 1600" in text_of(response)
    if url == SESSIONS:
        assert content.count('data-testid="session-group"') == 200
        assert "page 1 of" in content


def test_pages_that_come_together_ask_the_nodes_once(sign_in: SignIn, node: Node, front: FakeNode) -> None:
    client = sign_in(superuser=True)
    for url in VIEWS:
        client.get(at(url, node))
    assert front.requests == ["GET /status", "GET /sessions"]


def test_who_acts_sees_it_at_once(sign_in: SignIn, node: Node, front: FakeNode) -> None:
    client = sign_in(superuser=True)
    assert A in client.get(SESSIONS).content.decode()
    client.post(f"{SESSIONS}evict/", {"session": A, "confirmed": "yes"})
    assert A not in client.get(SESSIONS).content.decode()
