from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from nodes import samples
from nodes.models import Node, NodeSample
from tests.conftest import Clock
from tests.unit.nodes.conftest import MakeNode, Mesh, SignIn
from tests.unit.nodes.fake_node import FakeNode, session_id
from tests.unit.nodes.pages import row, text_of

MESH = "/admin/nodes/mesh/"

pytestmark = pytest.mark.django_db


def attributes(html: str, testid: str, *names: str) -> list[tuple[str, ...]]:
    """The data attributes of the elements with that test id, in the page's order."""
    tags = re.findall(rf'<[^>]*data-testid="{testid}"[^>]*>', html)
    return [tuple(re.findall(rf'data-{name}="([^"]*)"', tag)[0] for name in names) for tag in tags]


def test_the_bar_shows_who_holds_what_and_the_gaps(
    sign_in: SignIn, front: FakeNode, make_node: MakeNode, mesh: Mesh
) -> None:
    draining = make_node("15:20")
    draining.state = "draining"
    mesh(front, draining)
    response = sign_in("view_mesh").get(MESH)
    html = response.content.decode()
    assert attributes(html, "layer-span", "node", "start", "end", "state") == [
        (front.url, "0", "15", "ready"),
        (draining.url, "15", "20", "draining"),
    ]
    assert attributes(html, "layer-gap", "start", "end") == [("15", "30")]
    assert "No ready node holds layers 15:30." in text_of(response)


def test_a_removed_node_covers_nothing(sign_in: SignIn, front: FakeNode, back: FakeNode, mesh: Mesh) -> None:
    mesh(front, back)
    row(back, is_removed=True)
    html = sign_in("view_mesh").get(MESH).content.decode()
    assert attributes(html, "layer-gap", "start", "end") == [("15", "30")]
    assert attributes(html, "node-row", "node", "state") == [(front.url, "ready"), (back.url, "removed")]


def test_a_row_per_node_says_how_it_does(sign_in: SignIn, front: FakeNode, mesh: Mesh, clock: Clock) -> None:
    mesh(front)
    front.hold(session_id("a"))
    front.evictions.update(operator=3, ttl=1)
    client = sign_in("view_mesh")
    client.get(MESH)
    clock.advance(10)
    front.work = front.work | {"steps": {"prefill": 4, "decode": 33, "stateless": 0}, "compute_ms": 1600.0}
    response = client.get(MESH)
    text = text_of(response)
    for part in ("ready", "0:15", "toy", "float32 · cpu · 0.1.0", "1 / 8", "12.0 KiB / 2.0 GiB", "unknown_session 2"):
        assert part in text
    assert "ttl 1, operator 3 2.5 40.0 ms queue 0.0 ms" in text
    assert 'data-operator="3"' in response.content.decode()


def test_a_node_that_falls_silent_keeps_its_last_numbers_greyed_with_their_age(
    sign_in: SignIn, make_node: MakeNode, front: FakeNode, mesh: Mesh, clock: Clock
) -> None:
    quiet = make_node("15:30")
    mesh(front, quiet)
    quiet.hold(session_id("a"), past_len=2048)
    client = sign_in("view_mesh")
    client.get(MESH)
    quiet.secret = "another secret: it now refuses us"
    clock.advance(42)
    response = client.get(MESH)
    assert attributes(response.content.decode(), "node-row", "state", "stale") == [
        ("ready", "no"),
        ("unreachable", "yes"),
    ]
    text = text_of(response)
    assert "2.0 MiB / 2.0 GiB" in text
    assert "42 s" in text
    assert "No ready node holds layers 15:30." in text


def test_of_a_node_that_was_never_heard_its_row_says_where_it_belongs(
    sign_in: SignIn, front: FakeNode, dead: str, mesh: Mesh
) -> None:
    mesh(front, dead)
    row(dead, start_layer=15, end_layer=30, fingerprint="sha256:toy", dtype="float32", model_name="toy")
    html = sign_in("view_mesh").get(MESH).content.decode()
    assert attributes(html, "layer-span", "node", "start", "state") == [
        (front.url, "0", "ready"),
        (dead, "15", "unreachable"),
    ]
    assert attributes(html, "layer-bar", "layers") == [("30",)]


def test_the_curves_are_drawn_from_samples(sign_in: SignIn, front: FakeNode, mesh: Mesh, settings: Any) -> None:
    mesh(front)
    node, now = row(front), timezone.now()
    last = samples.interval_end(now, settings.MESHNET_SAMPLE_SECONDS)
    for back in range(8):
        NodeSample.objects.create(
            node=node,
            at=last - timedelta(seconds=15 * back),
            sessions=3,
            bytes=2**20,
            evictions=5,
            tokens=900 - 30 * back,
        )
    response = sign_in("view_mesh").get(MESH)
    html, text = response.content.decode(), text_of(response)
    for key in ("sessions", "bytes", "evictions", "tokens"):
        assert f'data-testid="curve-{key}"' in html
    assert html.count("<polyline") == 4
    assert "Sessions held 3 " in text
    assert "Cache 1.0 MiB " in text
    assert "Tokens per second 2.0 " in text


def test_looking_writes_no_samples(sign_in: SignIn, front: FakeNode, mesh: Mesh) -> None:
    mesh(front)
    row(front)
    sign_in(superuser=True).get(MESH)
    assert not NodeSample.objects.exists()
    assert {request.split()[0] for request in front.requests} == {"GET"}


def test_the_json_says_the_same(sign_in: SignIn, front: FakeNode, mesh: Mesh) -> None:
    mesh(front)
    body = sign_in("view_mesh").get(f"{MESH}data.json").json()
    assert body["models"][0]["gaps"] == [[15, 30]]
    assert body["nodes"][0]["url"] == front.url
    assert body["nodes"][0]["sessions"]["limit"] == "8"


def test_no_mesh_is_said_with_advice(sign_in: SignIn, settings: Any, tmp_path: Any) -> None:
    settings.MESHNET_NODES, settings.MESHNET_VAR_DIR = [], tmp_path
    client = sign_in("view_mesh")
    for query in ({}, {"fragment": "1"}):
        assert "manage.py mesh" in text_of(client.get(MESH, query))


def test_the_index_leads_to_it_those_who_may_see_it(sign_in: SignIn) -> None:
    client = sign_in("view_mesh")
    assert f'href="{MESH}" data-testid="mesh-entry"' in client.get("/admin/").content.decode()


def test_the_index_says_nothing_of_it_to_others(sign_in: SignIn) -> None:
    assert MESH not in sign_in("view_node").get("/admin/").content.decode()


def test_the_live_part_is_what_the_page_holds(sign_in: SignIn, front: FakeNode, mesh: Mesh) -> None:
    mesh(front)
    client = sign_in("view_mesh")
    whole, part = client.get(MESH), client.get(MESH, {"fragment": "1"})
    assert part["X-Meshnet-Live"] == "1"
    assert "X-Meshnet-Live" not in whole
    assert "<html" not in part.content.decode()
    assert f'data-live-url="{MESH}?fragment=1"' in whole.content.decode()
    assert attributes(part.content.decode(), "node-row", "node") == [(front.url,)]


def test_rows_of_nodes_that_left_stand_below_as_absent(sign_in: SignIn, front: FakeNode, mesh: Mesh) -> None:
    mesh(front)
    Node.objects.create(url="http://gone:1", start_layer=0, end_layer=30, fingerprint="sha256:toy", dtype="float32")
    html = sign_in("view_mesh").get(MESH).content.decode()
    assert attributes(html, "node-row", "state") == [("ready",), ("absent",)]
    assert len(attributes(html, "layer-span", "node")) == 1
