from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import Permission, User

from nodes.models import Node
from tests.conftest import Clock
from tests.unit.nodes.conftest import MakeNode, Mesh, SignIn
from tests.unit.nodes.fake_node import SECRET, FakeNode, session_id
from tests.unit.nodes.pages import row, said, text_of

A, B, C = session_id("a"), session_id("b"), session_id("c")
NODES = "/admin/nodes/node/"
SESSIONS = "/admin/nodes/kvsession/"
EVICT = "/admin/nodes/kvsession/evict/"
NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)

pytestmark = pytest.mark.django_db


def test_the_list_of_nodes_reads_each_node_once(sign_in: SignIn, front: FakeNode, back: FakeNode, mesh: Mesh) -> None:
    mesh(front, back)
    front.hold(A)
    front.evictions.update(operator=3)
    row(front, start_layer=0, end_layer=15, model_name="toy")
    row(back, start_layer=15, end_layer=30, model_name="toy")
    response = sign_in("view_node").get(NODES)
    text = text_of(response)
    assert f"{front.url} ready from MESHNET_NODES 0:15 toy 1 / 8 10 m 12.0 KiB / 2.0 GiB operator 3" in text
    assert f"{back.url} ready from MESHNET_NODES 15:30 toy 0 / 8 10 m 0 B / 2.0 GiB 0" in text
    assert front.requests == back.requests == ["GET /status", "GET /sessions"]
    assert SECRET not in response.content.decode()


def test_the_number_of_queries_does_not_grow_with_nodes_or_sessions(
    sign_in: SignIn, front: FakeNode, back: FakeNode, mesh: Mesh, django_assert_max_num_queries: Any
) -> None:
    mesh(front)
    row(front)
    client = sign_in("view_node", "view_kvsession", "evict_kvsession")
    counts = []
    for _ in range(2):
        for url in (NODES, SESSIONS):
            with django_assert_max_num_queries(20) as captured:
                client.get(url)
            counts.append(len(captured))
        for number in range(100, 150):
            front.hold(f"{number:032}")
            back.hold(f"{number:032}")
        mesh(front, back)
        Node.objects.get_or_create(url=back.url)
    assert counts[:2] == counts[2:]


def test_nodes_that_are_dead_strangers_or_draining_say_so(
    sign_in: SignIn, front: FakeNode, back: FakeNode, dead: str, mesh: Mesh
) -> None:
    mesh(front, dead)
    front.state = "draining"
    for node in (front, back, dead):
        row(node, start_layer=3, end_layer=7)
    text = text_of(sign_in("view_node").get(NODES))
    assert f"{front.url} draining from MESHNET_NODES 0:15" in text
    assert f"{back.url} absent - 3:7" in text
    assert f"{dead} unreachable from MESHNET_NODES 3:7 - - - - - cannot be reached: " in text
    assert back.requests == []


def test_announced_nodes_say_how_they_are_known(
    sign_in: SignIn, front: FakeNode, back: FakeNode, mesh: Mesh, time_machine: Any
) -> None:
    time_machine.move_to(NOON, tick=False)
    mesh(back)
    row(back, announced_at=NOON)
    row(front, announced_at=NOON - timedelta(seconds=14), announced_from="127.0.0.1", boot_id="one")
    row("http://gone:1", announced_at=NOON - timedelta(seconds=15))
    left = row("http://left:1", announced_at=NOON, left_at=NOON - timedelta(seconds=1))
    client = sign_in("view_node")
    text = text_of(client.get(NODES))
    assert f"{front.url} ready announces itself from 127.0.0.1" in text, "the commands and pages know it"
    assert f"{back.url} ready from MESHNET_NODES" in text
    assert "http://gone:1 absent offline since 2026-11-30 11:59:45 UTC" in text
    assert "http://left:1 absent left 2026-11-30 11:59:59 UTC" in text
    page = text_of(client.get(f"{NODES}{left.pk}/change/"))
    assert "Known left 2026-11-30 11:59:59 UTC" in page
    assert "said good-bye" in page


def test_the_page_of_a_node_is_read_only_and_live(sign_in: SignIn, front: FakeNode, mesh: Mesh) -> None:
    mesh(front)
    front.hold(A)
    node = row(front)
    client = sign_in("view_node")
    response = client.get(f"{NODES}{node.pk}/change/")
    assert response.status_code == 200
    assert "1 / 8" in text_of(response)
    assert "unknown_session 2" in text_of(response)
    assert client.post(f"{NODES}{node.pk}/change/", {"url": "http://elsewhere"}).status_code == 405
    assert client.get(f"{NODES}add/").status_code == 403


def test_a_node_is_deleted_only_with_the_right_to_do_so(sign_in: SignIn, front: FakeNode, mesh: Mesh) -> None:
    mesh(front)
    node = row(front)
    client = sign_in("view_node")
    assert client.post(f"{NODES}{node.pk}/delete/", {"post": "yes"}).status_code == 403
    User.objects.get().user_permissions.add(Permission.objects.get(codename="delete_node"))
    assert client.post(f"{NODES}{node.pk}/delete/", {"post": "yes"}).status_code == 302
    assert not Node.objects.exists()


def test_the_pages_carry_the_name_of_the_house(sign_in: SignIn) -> None:
    text = text_of(sign_in("view_node").get("/admin/"))
    assert "meshnet" in text
    assert "Django administration" not in text


# -- a node's page


def page_of(node: Node) -> str:
    return f"{NODES}{node.pk}/change/"


def test_the_page_shows_limits_sessions_and_last_errors(sign_in: SignIn, front: FakeNode, mesh: Mesh) -> None:
    mesh(front)
    front.hold(A)
    front.work["errors"] = [{"at": 1_700_000_000.0, "code": "compute_failed", "detail": "The layers failed."}, "odd"]
    node = row(front)
    text = text_of(sign_in("view_node", "view_kvsession").get(page_of(node)))
    assert "2023-11-14 22:13:20 UTC compute_failed The layers failed." in text
    assert f"{A[:10]}…" in text
    assert "50.0 ms, 1.0 ms" in text, "a step on average"


def test_sessions_on_a_nodes_page_need_their_own_right(sign_in: SignIn, front: FakeNode, mesh: Mesh) -> None:
    mesh(front)
    front.hold(A)
    assert A not in sign_in("view_node").get(page_of(row(front))).content.decode()


def test_without_rights_to_act_the_page_offers_nothing(sign_in: SignIn, front: FakeNode, mesh: Mesh) -> None:
    mesh(front)
    html = sign_in("view_node").get(page_of(row(front))).content.decode()
    offered = ("limits-form", 'data-testid="drain"', 'data-testid="remove"', "/delete/")
    assert [name for name in offered if name in html] == []


def test_limits_of_the_running_node_are_changed_and_logged(sign_in: SignIn, front: FakeNode, mesh: Mesh) -> None:
    mesh(front)
    node = row(front)
    client = sign_in("view_node", "limit_node")
    assert "lasts until the node" in text_of(client.get(page_of(node)))
    response = client.post(f"{NODES}{node.pk}/limits/", {"ttl_seconds": "5m", "max_sessions": "8", "max_bytes": "1GiB"})
    assert response.url == page_of(node)
    assert said(response) == ["Changed until the node's restart: ttl_seconds 300, max_bytes 1073741824."]
    assert (front.ttl_seconds, front.max_sessions, front.max_bytes) == (300, 8, 1024**3)
    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.action_flag) == (str(node.pk), CHANGE)
    assert "ttl_seconds 300" in entry.change_message
    assert "5 m" in text_of(client.get(page_of(node))), "the next look is a new one"


def test_a_limit_that_the_node_refuses_shows_the_nodes_words(sign_in: SignIn, front: FakeNode, mesh: Mesh) -> None:
    mesh(front)
    front.refusal = "max_sessions can be 16 at most while the node runs."
    response = sign_in("view_node", "limit_node").post(f"{NODES}{row(front).pk}/limits/", {"max_sessions": "99"})
    assert said(response) == [f"Not changed: {front.refusal}"]
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"max_sessions": "many"}, "Sessions: 'many' is not a whole number."),
        ({"ttl_seconds": "never"}, "Time to live: 'never' is not a stretch of time"),
        ({"max_bytes": "2G"}, "Cache bytes: '2G' is not a size"),
        ({"max_sessions": " ", "max_bytes": ""}, "Nothing was changed"),
        ({"max_sessions": "8"}, "Nothing was changed"),
    ],
)
def test_a_limit_that_cannot_be_read_never_reaches_the_node(
    sign_in: SignIn, front: FakeNode, mesh: Mesh, form: dict[str, str], message: str
) -> None:
    mesh(front)
    response = sign_in("view_node", "limit_node").post(f"{NODES}{row(front).pk}/limits/", form)
    assert said(response)[0].startswith(message)
    assert "PATCH /limits" not in front.requests


@pytest.mark.parametrize("name", ["drain", "undrain", "remove", "restore"])
def test_an_act_is_asked_first(sign_in: SignIn, front: FakeNode, mesh: Mesh, name: str) -> None:
    mesh(front)
    node = row(front)
    response = sign_in("drain_node").post(f"{NODES}{node.pk}/{name}/")
    assert response.status_code == 200
    assert "confirm-submit" in response.content.decode()
    assert {request.split()[0] for request in front.requests} == {"GET"}
    node.refresh_from_db()
    assert not node.is_removed


def test_a_node_is_drained_and_undrained(sign_in: SignIn, front: FakeNode, mesh: Mesh) -> None:
    mesh(front)
    node = row(front)
    client = sign_in("view_node", "drain_node")
    for name, state, offered in (("drain", "draining", "undrain"), ("undrain", "ready", "drain")):
        response = client.post(f"{NODES}{node.pk}/{name}/", {"confirmed": "yes"})
        assert response.url == page_of(node)
        assert front.state == state
        html = client.get(page_of(node)).content.decode()
        assert f'data-state="{state}"' in html
        assert f'data-testid="{offered}"' in html
    assert LogEntry.objects.count() == 2


def test_a_removed_node_shows_as_removed_until_it_is_brought_back(sign_in: SignIn, front: FakeNode, mesh: Mesh) -> None:
    mesh(front)
    node = row(front)
    client = sign_in("view_node", "drain_node")
    client.post(f"{NODES}{node.pk}/remove/", {"confirmed": "yes"})
    node.refresh_from_db()
    assert node.is_removed
    assert 'data-state="removed"' in client.get(page_of(node)).content.decode()
    assert f"{front.url} removed" in text_of(client.get(NODES))
    client.post(f"{NODES}{node.pk}/restore/", {"confirmed": "yes"})
    node.refresh_from_db()
    assert not node.is_removed
    assert [entry.change_message.split(":")[0] for entry in LogEntry.objects.order_by("pk")] == ["Remove", "Bring back"]


@pytest.mark.parametrize("name", ["drain", "remove"])
def test_before_the_last_holder_of_layers_is_taken_that_is_said(
    sign_in: SignIn, front: FakeNode, back: FakeNode, make_node: MakeNode, mesh: Mesh, name: str, clock: Clock
) -> None:
    client, node = sign_in("drain_node"), row(front)
    mesh(front, back)
    asked = text_of(client.post(f"{NODES}{node.pk}/{name}/"))
    assert "No other ready node holds layers 0:15" in asked
    mesh(front, back, make_node("0:15"))
    assert "No other ready node" not in text_of(client.post(f"{NODES}{node.pk}/{name}/"))


def test_a_node_that_does_not_answer_is_not_drained_and_that_is_said(sign_in: SignIn, dead: str, mesh: Mesh) -> None:
    mesh(dead)
    response = sign_in("view_node", "drain_node").post(f"{NODES}{row(dead).pk}/drain/", {"confirmed": "yes"})
    assert said(response)[0].startswith(f"{dead}: not confirmed: cannot be reached")
    assert not LogEntry.objects.exists()


def test_a_row_whose_node_has_left_the_mesh_can_be_looked_at_and_not_told_anything(
    sign_in: SignIn, front: FakeNode, back: FakeNode, mesh: Mesh
) -> None:
    mesh(front)
    node = row(back, start_layer=15, end_layer=30)
    client = sign_in("view_node", "drain_node", "limit_node")
    html = client.get(page_of(node)).content.decode()
    assert 'data-state="absent"' in html
    assert "limits-form" not in html
    for name in ("limits", "drain"):
        response = client.post(f"{NODES}{node.pk}/{name}/", {"max_sessions": "3", "confirmed": "yes"})
        assert "not among this head" in said(response)[-1]
    assert back.requests == []


def test_a_page_of_no_node_is_not_found(sign_in: SignIn) -> None:
    client = sign_in(superuser=True)
    assert client.get(f"{NODES}77/change/").status_code == 404
    assert client.post(f"{NODES}77/drain/").status_code == 404
