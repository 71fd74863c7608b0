from __future__ import annotations

import re
from io import StringIO
from typing import Any

import pytest
from django.contrib.admin.models import DELETION, LogEntry
from django.contrib.auth.models import Permission, User
from django.core.management import call_command

from nodes.layer_bar import short_name
from nodes.models import KVSession
from nodes.snapshots import FRESH_SECONDS
from tests.conftest import Clock
from tests.unit.nodes.conftest import MakeNode, Mesh, SignIn
from tests.unit.nodes.fake_node import SECRET, FakeNode, session_id
from tests.unit.nodes.pages import row, said, text_of

A, B, C = session_id("a"), session_id("b"), session_id("c")
NODES = "/admin/nodes/node/"
SESSIONS = "/admin/nodes/kvsession/"
EVICT = "/admin/nodes/kvsession/evict/"

pytestmark = pytest.mark.django_db


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
        assert f"{short_name(node.url)} {layers} {tokens} 2.0 MiB 1 m 15 s 3.0 s 9 m 57 s" in text
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
    assert client.post(EVICT, {"session": A, "confirmed": "yes", "csrfmiddlewaretoken": token[1]}).status_code == 302
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
    response = client.post(EVICT, {"session": [A, B], "confirmed": "yes"})
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
    response = sign_in("view_kvsession", "evict_kvsession").post(EVICT, {"session": A, "confirmed": "yes"})
    failed, done = said(response)
    assert failed.startswith(f"{dead}: not confirmed: cannot be reached: ")
    assert done == f"{front.url}: evicted 1 of 1 selected."
    assert f"{dead}: cannot be reached" in LogEntry.objects.get().change_message


def test_a_session_that_has_gone_meanwhile_is_said_and_not_logged(sign_in: SignIn, front: FakeNode, mesh: Mesh) -> None:
    mesh(front)
    response = sign_in("view_kvsession", "evict_kvsession").post(EVICT, {"session": A, "confirmed": "yes"})
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
    response = sign_in("evict_kvsession").post(EVICT, {"session": A, "confirmed": "yes"})
    assert response.url == "/admin/"
    assert front.sessions == {}


def test_f04_what_a_command_evicted_is_gone_from_the_page_two_seconds_later(
    sign_in: SignIn, front: FakeNode, mesh: Mesh, clock: Clock
) -> None:
    mesh(front)
    front.hold(A)
    client = sign_in("view_kvsession")
    assert A in client.get(SESSIONS).content.decode()
    call_command("kv_evict", "--session", A, stdout=StringIO())
    clock.advance(FRESH_SECONDS)
    assert A not in client.get(SESSIONS).content.decode()


def test_f03_twenty_reloads_show_the_same_sessions(sign_in: SignIn, front: FakeNode, mesh: Mesh, clock: Clock) -> None:
    mesh(front)
    for number in range(6):
        front.hold(session_id(str(number)))
    client, seen = sign_in("view_kvsession"), set()
    for _ in range(20):
        seen.add(tuple(re.findall(r'<code title="(\w+)"', client.get(SESSIONS).content.decode())))
        clock.advance(FRESH_SECONDS)
    assert seen == {tuple(session_id(str(number)) for number in range(6))}


# -- what will happen is said first


def test_a_first_post_says_what_will_happen_and_evicts_nothing(
    sign_in: SignIn, front: FakeNode, back: FakeNode, dead: str, mesh: Mesh
) -> None:
    mesh(front, back, dead)
    front.hold(A, busy=True)
    front.hold(B)
    back.hold(A)
    response = sign_in("evict_kvsession").post(EVICT, {"session": [A, B]})
    text = text_of(response)
    assert response.status_code == 200
    assert "Evict 2 selected sessions?" in text
    assert "2 sessions would go now, 1 of them with a step under way." in text
    assert f"{front.url} holds 2 of the 2 selected" in text
    assert f"{back.url} holds 1 of the 2 selected" in text
    assert f"{dead} cannot be asked now: cannot be reached" in text
    assert len(front.sessions) == 2
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize(
    ("form", "left"),
    [
        ({"all": "1"}, []),
        ({"idle_longer_than": "1m"}, [B]),
        ({"idle_longer_than": "90"}, [A, B]),
        ({"session": A}, [B]),
    ],
)
def test_what_the_confirmation_sends_again_does_what_it_said(
    sign_in: SignIn, front: FakeNode, mesh: Mesh, form: dict[str, str], left: list[str]
) -> None:
    mesh(front)
    front.hold(A, idle=80)
    front.hold(B, idle=2)
    client = sign_in("view_kvsession", "evict_kvsession")
    asked = client.post(EVICT, form)
    expected = 2 - len(left)
    assert f"{expected} session" in text_of(asked)
    hidden = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', asked.content.decode()))
    response = client.post(EVICT, hidden)
    assert response.url == SESSIONS
    assert list(front.sessions) == left
    assert LogEntry.objects.count() == expected
    assert len(said(response)) == 1


def test_all_of_one_node_leaves_the_others_alone(sign_in: SignIn, front: FakeNode, back: FakeNode, mesh: Mesh) -> None:
    mesh(front, back)
    front.hold(A)
    back.hold(A)
    client = sign_in("view_kvsession", "evict_kvsession")
    form = {"all": "1", "node": back.url}
    assert f"Evict all sessions on {back.url}?" in text_of(client.post(EVICT, form))
    assert said(client.post(EVICT, form | {"confirmed": "yes"})) == [f"{back.url}: evicted 1 session."]
    assert (list(front.sessions), list(back.sessions)) == ([A], [])


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"idle_longer_than": "soon"}, "is not a stretch of time"),
        ({"idle_longer_than": ""}, "is not a stretch of time"),
        ({"all": "1", "node": "http://elsewhere"}, "is not a node of this mesh"),
    ],
)
def test_what_cannot_be_read_evicts_nothing_and_is_said(
    sign_in: SignIn, front: FakeNode, mesh: Mesh, form: dict[str, str], message: str
) -> None:
    mesh(front)
    front.hold(A)
    response = sign_in("view_kvsession", "evict_kvsession").post(EVICT, form | {"confirmed": "yes"})
    assert message in said(response)[0]
    assert A in front.sessions


def test_an_eviction_of_all_that_no_node_confirms_is_logged_once(sign_in: SignIn, dead: str, mesh: Mesh) -> None:
    mesh(dead)
    sign_in("view_kvsession", "evict_kvsession").post(EVICT, {"all": "1", "confirmed": "yes"})
    entry = LogEntry.objects.get()
    assert entry.object_id == "all sessions"
    assert f"{dead}: cannot be reached" in entry.change_message


# -- the table


def test_lengths_that_one_token_under_way_does_not_explain_are_marked(
    sign_in: SignIn, front: FakeNode, back: FakeNode, mesh: Mesh
) -> None:
    mesh(front, back)
    for session, here, there in ((A, 20, 19), (B, 20, 18)):
        front.hold(session, past_len=here)
        back.hold(session, past_len=there)
    html = sign_in("view_kvsession").get(SESSIONS).content.decode()
    assert f'data-session="{A}" data-mismatch="no"' in html
    assert f'data-session="{B}" data-mismatch="yes"' in html


def test_of_a_node_that_falls_silent_the_last_sessions_stay_greyed(
    sign_in: SignIn, front: FakeNode, make_node: MakeNode, mesh: Mesh, clock: Clock
) -> None:
    quiet = make_node("15:30")
    mesh(front, quiet)
    front.hold(A)
    quiet.hold(B, age=5)
    client = sign_in("view_kvsession")
    assert 'data-stale="yes"' not in client.get(SESSIONS).content.decode()
    quiet.broken["/sessions"] = {}
    clock.advance(60)
    response = client.get(SESSIONS)
    html = response.content.decode()
    assert f'data-session="{A}" data-node="{front.url}" data-stale="no"' in html
    assert f'data-session="{B}" data-node="{quiet.url}" data-stale="yes"' in html
    assert "1 m 5 s" in text_of(response), "aged by what has passed since"
    assert "1 session, 12.0 KiB; 1 of 2 nodes answered" in text_of(response)


def test_a_page_holds_two_hundred_sessions_and_leads_to_the_next(sign_in: SignIn, front: FakeNode, mesh: Mesh) -> None:
    mesh(front)
    for number in range(201):
        front.hold(f"{number:032}", age=1000 - number)
    client = sign_in("view_kvsession")
    first, second = (client.get(SESSIONS, {"p": page}).content.decode() for page in ("1", "2"))
    assert (first.count("session-group"), second.count("session-group")) == (200, 1)
    assert "page 1 of 2" in first
    assert client.get(SESSIONS, {"p": "x²"}).status_code == 200


def test_the_json_says_the_same_with_the_same_filters(
    sign_in: SignIn, front: FakeNode, back: FakeNode, mesh: Mesh
) -> None:
    mesh(front, back)
    front.hold(A)
    back.hold(B)
    body = sign_in("view_kvsession").get(f"{SESSIONS}data.json", {"node": back.url}).json()
    assert [session["id"] for session in body["sessions"]] == [B]
    assert body["sessions"][0]["holdings"][0]["tokens"] == "12"
    assert SECRET not in str(body)
