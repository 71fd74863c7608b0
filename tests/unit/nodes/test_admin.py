from __future__ import annotations

import re
from collections.abc import Callable
from io import StringIO
from time import monotonic
from typing import Any

import pytest
from django.contrib.admin.models import DELETION, LogEntry
from django.contrib.auth.models import Permission, User
from django.contrib.messages import get_messages
from django.core.management import call_command
from django.test import Client
from django.utils import timezone

from nodes import live
from nodes.models import KVSession, Node
from tests.unit.nodes.conftest import MakeNode
from tests.unit.nodes.fake_node import SECRET, FakeNode, session_id

Mesh = Callable[..., None]
SignIn = Callable[..., Client]
A, B, C = session_id("a"), session_id("b"), session_id("c")
NODES = "/admin/nodes/node/"
SESSIONS = "/admin/nodes/kvsession/"
EVICT = "/admin/nodes/kvsession/evict/"

pytestmark = pytest.mark.django_db


@pytest.fixture
def sign_in() -> SignIn:
    """`sign_in("view_kvsession", …)` is a browser of a staff member with these rights and no others."""

    def sign_in(*rights: str, superuser: bool = False, csrf: bool = False) -> Client:
        user = User.objects.create_user("operator", is_staff=True, is_superuser=superuser)
        user.user_permissions.set(Permission.objects.filter(codename__in=rights))
        client = Client(enforce_csrf_checks=csrf)
        client.force_login(user)
        return client

    return sign_in


def text_of(response: Any) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", response.content.decode()))


def said(response: Any) -> list[str]:
    return [str(message) for message in get_messages(response.wsgi_request)]


def row(node: FakeNode | str, **fields: Any) -> Node:
    return Node.objects.create(url=node if isinstance(node, str) else node.url, seen_at=timezone.now(), **fields)


# -- live sessions


def test_the_page_shows_each_session_on_each_node(sign_in: SignIn, front: FakeNode, back: FakeNode, mesh: Mesh) -> None:
    mesh(front, back)
    front.hold(A, past_len=2048, age=75, idle=3, busy=True)
    back.hold(A, past_len=2047, age=75, idle=3)
    response = sign_in("view_kvsession").get(SESSIONS)
    html, text = response.content.decode(), text_of(response)
    assert response.status_code == 200
    assert html.count(f'title="{A}"') == 1
    assert f"{A[:10]}…" in text
    for node, layers, tokens in ((front, "0:15", "2048"), (back, "15:30", "2047")):
        assert f"{node.url} {layers} {tokens} 2.0 MiB 1 m 15 s 3.0 s 9 m 57 s" in text
    assert text.count(" busy ") == 1
    assert SECRET not in html


def test_without_the_right_to_evict_nothing_offers_it(sign_in: SignIn, front: FakeNode, mesh: Mesh) -> None:
    mesh(front)
    front.hold(A)
    html = sign_in("view_kvsession").get(SESSIONS).content.decode()
    assert "Evict" not in html
    assert 'type="checkbox"' not in html


def test_a_session_is_linked_to_its_generation_for_those_who_may_see_it(
    sign_in: SignIn, front: FakeNode, mesh: Mesh
) -> None:
    mesh(front)
    front.hold(A)
    client = sign_in("view_kvsession", "view_generation")
    link = f"/admin/generation/generation/?session_id={A}"
    assert f'href="{link}"' in client.get(SESSIONS).content.decode()
    assert client.get(link).status_code == 200
    User.objects.get().user_permissions.set(Permission.objects.filter(codename="view_kvsession"))
    assert link not in client.get(SESSIONS).content.decode()


def test_the_page_can_be_bound_to_a_node_or_a_session(
    sign_in: SignIn, front: FakeNode, back: FakeNode, mesh: Mesh
) -> None:
    mesh(front, back)
    front.hold(A)
    back.hold(B)
    client = sign_in("view_kvsession")
    of_node = client.get(SESSIONS, {"node": front.url}).content.decode()
    assert (f'title="{A}"' in of_node, f'title="{B}"' in of_node) == (True, False)
    of_session = client.get(SESSIONS, {"session_id": B}).content.decode()
    assert (f'title="{A}"' in of_session, f'title="{B}"' in of_session) == (False, True)


def test_what_a_node_says_is_escaped(sign_in: SignIn, front: FakeNode, mesh: Mesh) -> None:
    mesh(front)
    front.hold("<script>alert(1)</script>" + A)
    assert "<script>alert" not in sign_in(superuser=True).get(SESSIONS).content.decode()


def test_an_old_or_odd_node_does_not_break_the_page(sign_in: SignIn, front: FakeNode, mesh: Mesh) -> None:
    mesh(front)
    front.broken["/sessions"] = {
        "stats": {"bytes": None},
        "sessions": [{"id": A, "age_seconds": "old"}, {"id": B, "age_seconds": float("nan")}],
    }
    response = sign_in("view_kvsession").get(SESSIONS)
    assert response.status_code == 200
    assert A in response.content.decode()


def test_no_mesh_is_said_with_advice(sign_in: SignIn, settings: Any, tmp_path: Any) -> None:
    settings.MESHNET_NODES = []
    settings.MESHNET_VAR_DIR = tmp_path
    response = sign_in("view_kvsession").get(SESSIONS)
    assert response.status_code == 200
    assert "manage.py mesh" in text_of(response)


def test_e07_a_dead_and_a_hanging_node_do_not_hang_the_pages(
    sign_in: SignIn,
    front: FakeNode,
    dead: str,
    make_node: MakeNode,
    mesh: Mesh,
) -> None:
    hanging = make_node(hanging=True)
    mesh(dead, hanging, front)
    front.hold(A)
    row(hanging)
    client = sign_in("view_kvsession", "view_node")
    for url in (SESSIONS, NODES):
        begun = monotonic()
        response = client.get(url)
        # The deadline is 2 s; issue 4 allows 3 s. The rest is for a busy machine.
        assert monotonic() - begun < live.FETCH_DEADLINE_SECONDS + 3
        assert "did not answer within 2 s" in text_of(response)
    response = client.get(SESSIONS)
    assert A in response.content.decode()
    assert dead in text_of(response)


def test_e07_looking_changes_nothing(sign_in: SignIn, front: FakeNode, mesh: Mesh) -> None:
    mesh(front)
    front.hold(A)
    row(front)
    client = sign_in(superuser=True)
    client.get(SESSIONS)
    client.get(NODES)
    assert {request.split()[0] for request in front.requests} == {"GET"}
    assert client.post(SESSIONS, {"session": A}).status_code == 405


def test_e07_evicting_by_link_is_refused(sign_in: SignIn, front: FakeNode, mesh: Mesh) -> None:
    mesh(front)
    front.hold(A)
    assert sign_in(superuser=True).get(EVICT, {"session": A}).status_code == 405
    assert A in front.sessions


def test_e07_evicting_without_a_csrf_token_is_refused(sign_in: SignIn, front: FakeNode, mesh: Mesh) -> None:
    mesh(front)
    front.hold(A)
    client = sign_in(superuser=True, csrf=True)
    assert client.post(EVICT, {"session": A}).status_code == 403
    assert A in front.sessions
    token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', client.get(SESSIONS).content.decode())
    assert token is not None
    assert client.post(EVICT, {"session": A, "csrfmiddlewaretoken": token[1]}).status_code == 302
    assert A not in front.sessions


def test_e07_evicting_needs_its_own_right(sign_in: SignIn, front: FakeNode, mesh: Mesh) -> None:
    mesh(front)
    front.hold(A)
    assert sign_in("view_kvsession", "view_node", "delete_node").post(EVICT, {"session": A}).status_code == 403
    assert front.requests == []
    assert not LogEntry.objects.exists()


def test_seeing_needs_its_own_right(sign_in: SignIn, front: FakeNode, mesh: Mesh) -> None:
    mesh(front)
    client = sign_in("view_node")
    assert client.get(SESSIONS).status_code == 403
    assert "kvsession" not in client.get("/admin/").content.decode()
    assert front.requests == []


@pytest.mark.parametrize("url", [NODES, SESSIONS, EVICT])
def test_the_anonymous_are_sent_to_the_login_page(url: str) -> None:
    assert Client().get(url).url.startswith("/admin/login/")


def test_the_selected_sessions_are_evicted_on_every_node_and_logged(
    sign_in: SignIn, front: FakeNode, back: FakeNode, mesh: Mesh
) -> None:
    mesh(front, back)
    for session in (A, B, C):
        front.hold(session)
    back.hold(A)
    client = sign_in("view_kvsession", "evict_kvsession")
    html = client.get(SESSIONS).content.decode()
    assert f'name="session" value="{A}"' in html
    response = client.post(EVICT, {"session": [A, B]})
    assert response.url == SESSIONS
    assert (list(front.sessions), list(back.sessions)) == ([C], [])
    assert said(response) == [
        f"{front.url}: evicted 2 of 2 selected.",
        f"{back.url}: evicted 1 of 2 selected.",
    ]
    entries = LogEntry.objects.order_by("object_id")
    assert [entry.object_id for entry in entries] == [A, B]
    assert {entry.action_flag for entry in entries} == {DELETION}
    assert {entry.content_type.model_class() for entry in entries} == {KVSession}
    assert f"{front.url}: 2 evicted; {back.url}: 1 evicted" in entries[0].change_message
    # The log is shown on the index and must not look for a page that is not there.
    assert "live session" in client.get("/admin/").content.decode()


def test_a_node_that_fails_is_named_and_the_others_are_done(
    sign_in: SignIn, front: FakeNode, dead: str, mesh: Mesh
) -> None:
    mesh(dead, front)
    front.hold(A)
    response = sign_in("view_kvsession", "evict_kvsession").post(EVICT, {"session": A})
    failed, done = said(response)
    assert failed.startswith(f"{dead}: not confirmed: cannot be reached: ")
    assert done == f"{front.url}: evicted 1 of 1 selected."
    assert f"{dead}: cannot be reached" in LogEntry.objects.get().change_message


def test_a_session_that_has_gone_meanwhile_is_said_and_not_logged(sign_in: SignIn, front: FakeNode, mesh: Mesh) -> None:
    mesh(front)
    response = sign_in("view_kvsession", "evict_kvsession").post(EVICT, {"session": A})
    assert said(response) == [f"{front.url}: held none of the selected sessions any more."]
    assert not LogEntry.objects.exists()


def test_an_empty_selection_evicts_nothing(sign_in: SignIn, front: FakeNode, mesh: Mesh) -> None:
    mesh(front)
    front.hold(A)
    response = sign_in("view_kvsession", "evict_kvsession").post(EVICT)
    assert said(response) == ["No session was selected; nothing was evicted."]
    assert A in front.sessions


def test_who_may_evict_and_not_look_comes_back_to_the_index(sign_in: SignIn, front: FakeNode, mesh: Mesh) -> None:
    mesh(front)
    front.hold(A)
    response = sign_in("evict_kvsession").post(EVICT, {"session": A})
    assert response.url == "/admin/"
    assert front.sessions == {}


def test_f04_what_a_command_evicted_is_gone_from_the_page(sign_in: SignIn, front: FakeNode, mesh: Mesh) -> None:
    mesh(front)
    front.hold(A)
    client = sign_in("view_kvsession")
    assert A in client.get(SESSIONS).content.decode()
    call_command("kv_evict", "--session", A, stdout=StringIO())
    assert A not in client.get(SESSIONS).content.decode()


def test_f03_twenty_reloads_show_the_same_sessions(sign_in: SignIn, front: FakeNode, mesh: Mesh) -> None:
    mesh(front)
    for number in range(6):
        front.hold(session_id(str(number)))
    client = sign_in("view_kvsession")
    seen = {tuple(re.findall(r'<code title="(\w+)"', client.get(SESSIONS).content.decode())) for _ in range(20)}
    assert seen == {tuple(session_id(str(number)) for number in range(6))}


# -- nodes


def test_the_list_of_nodes_reads_each_node_once(sign_in: SignIn, front: FakeNode, back: FakeNode, mesh: Mesh) -> None:
    mesh(front, back)
    front.hold(A)
    front.evictions.update(operator=3)
    row(front, start_layer=0, end_layer=15, model_name="toy")
    row(back, start_layer=15, end_layer=30, model_name="toy")
    response = sign_in("view_node").get(NODES)
    text = text_of(response)
    assert f"{front.url} ready 0:15 toy 1 / 8 10 m 12.0 KiB / 2.0 GiB operator 3" in text
    assert f"{back.url} ready 15:30 toy 0 / 8 10 m 0 B / 2.0 GiB 0" in text
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
    assert f"{front.url} draining 0:15" in text
    assert f"{back.url} absent 3:7" in text
    assert f"{dead} unreachable 3:7 - - - - - cannot be reached: " in text
    assert back.requests == []


def test_the_page_of_a_node_is_read_only_and_live(sign_in: SignIn, front: FakeNode, mesh: Mesh) -> None:
    mesh(front)
    front.hold(A)
    node = row(front)
    client = sign_in("view_node")
    response = client.get(f"{NODES}{node.pk}/change/")
    assert response.status_code == 200
    assert "1 / 8" in text_of(response)
    assert "unknown_session 2" in text_of(response)
    assert client.post(f"{NODES}{node.pk}/change/", {"url": "http://elsewhere"}).status_code == 403
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
