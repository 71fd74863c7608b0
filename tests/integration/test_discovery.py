"""Nodes find their head: they announce themselves, restart, leave and die, and the head knows no other way of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import processes
from tests.processes import Served, wait_until
from tests.toy_mesh import get_json

#: What the head's database says of the nodes, and whom it would use.
LOOK = """
from django.utils import timezone
from nodes.announcements import roster
from nodes.models import Node
result = {"roster": roster(timezone.now()), "rows": list(Node.objects.order_by("url").values())}
"""


class Discovered:
    """A head that was told of no node."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.model = model
        self.folder = folder
        self.head = processes.head(folder / "head", model, [], MESHNET_ANNOUNCE_SECONDS="1")
        self.key = processes.prepare_head(self.head)

    def node(self, name: str, layers: str, port: int | None = None) -> Served:
        """A node of this mesh, not yet started."""
        node = processes.node(self.folder / name, self.model, layers, MESHNET_HEADS=self.head.url)
        if port is not None:
            node.port = port
        return node

    def chat(self) -> tuple[int, dict[str, Any]]:
        status, _, body = processes.call(
            f"{self.head.url}/v1/chat/completions",
            "POST",
            {"model": self.model.name, "messages": [{"role": "user", "content": "hello"}], "temperature": 0,
             "max_tokens": 8},
            {"Authorization": f"Bearer {self.key}"},
        )  # fmt: skip
        return status, json.loads(body)

    def text(self) -> str:
        status, body = self.chat()
        assert status == 200, body
        return str(body["choices"][0]["message"]["content"])

    def look(self) -> dict[str, Any]:
        seen: dict[str, Any] = processes.in_django(self.head, LOOK)
        return seen

    def is_ready(self) -> bool:
        return processes.call(f"{self.head.url}/readyz")[0] == 200

    def row(self, node: Served) -> dict[str, Any]:
        rows = [row for row in self.look()["rows"] if row["url"] == node.url]
        assert len(rows) == 1, rows
        return dict(rows[0])


@pytest.fixture
def mesh(toy_folder: Callable[[str], Path], tmp_path: Path) -> Iterator[Discovered]:
    mesh = Discovered(tmp_path, toy_folder("llama"))
    mesh.head.start()
    try:
        yield mesh
    finally:
        mesh.head.stop()


def test_nodes_announce_themselves_and_chats_are_answered(mesh: Discovered, toy_mesh: Any) -> None:
    front, back = mesh.node("front", "0:2"), mesh.node("back", "2:4")
    with processes.serving(front, back):
        mesh.head.wait_ready()
        seen = mesh.look()
        assert sorted(seen["roster"]) == sorted([front.url, back.url])
        assert [row["announced_from"] for row in seen["rows"]] == 2 * ["127.0.0.1"]
        other = toy_mesh.client.chat.completions.create(
            model=mesh.model.name, messages=[{"role": "user", "content": "hello"}], temperature=0, max_tokens=8
        )
        assert mesh.text() == other.choices[0].message.content, "as through nodes of the settings"


def test_d07_a_restarted_node_has_one_row_with_its_new_boot_id(mesh: Discovered) -> None:
    front, back = mesh.node("front", "0:2"), mesh.node("back", "2:4")
    with processes.serving(front, back):
        mesh.head.wait_ready()
        text, boot_id = mesh.text(), mesh.row(back)["boot_id"]
        assert boot_id == get_json(f"{back.url}/status")["boot_id"]
        back.kill()
        again = mesh.node("again", "2:4", port=back.port)
        with processes.serving(again):
            new = get_json(f"{again.url}/status")["boot_id"]
            wait_until(lambda: mesh.row(again)["boot_id"] == new)
            assert new != boot_id
            wait_until(mesh.is_ready)
            assert mesh.text() == text
            assert sorted(mesh.look()["roster"]) == sorted([front.url, back.url])


def test_a_node_that_is_told_to_stop_says_good_bye(mesh: Discovered) -> None:
    front, back = mesh.node("front", "0:2"), mesh.node("back", "2:4")
    with processes.serving(front, back):
        mesh.head.wait_ready()
        back.stop()
        seen = mesh.look()
        assert seen["roster"] == [front.url], "as soon as the process has ended"
        assert mesh.row(back)["left_at"] is not None
        assert mesh.row(back)["state"] == "leaving"
        wait_until(lambda: not mesh.is_ready())
        assert mesh.chat()[0] == 503


def test_a_killed_node_is_offline_after_its_missed_beats(mesh: Discovered) -> None:
    front = mesh.node("front", "0:4")
    with processes.serving(front):
        mesh.head.wait_ready()
        front.kill()
        row = mesh.row(front)
        assert row["left_at"] is None, "it could not say good-bye"
        assert mesh.look()["roster"] == [front.url]
        # As if most of the silence had passed already.
        processes.in_django(
            mesh.head,
            "from datetime import timedelta\n"
            "from django.db.models import F\n"
            "from nodes.models import Node\n"
            "Node.objects.update(announced_at=F('announced_at') - timedelta(seconds=12))\n",
        )
        beat = mesh.row(front)["announced_at"]
        assert beat < row["announced_at"]
        wait_until(lambda: mesh.look()["roster"] == [], 40)
        assert mesh.row(front)["announced_at"] == beat, "nothing came from it any more"


def test_a_drained_node_tells_its_head_at_once(mesh: Discovered) -> None:
    front = mesh.node("front", "0:4")
    with processes.serving(front):
        mesh.head.wait_ready()
        assert processes.call(f"{front.url}/drain", "POST", {}, processes.secret_header())[0] == 200
        wait_until(lambda: mesh.row(front)["state"] == "draining")
        assert mesh.look()["roster"] == [front.url], "it still belongs to the mesh"


def test_nodes_with_overlapping_layers_serve_together(mesh: Discovered) -> None:
    front, back = mesh.node("front", "0:3"), mesh.node("back", "1:4")
    with processes.serving(front, back):
        mesh.head.wait_ready()
        assert mesh.text()


def test_a_node_with_another_secret_is_not_heard_and_says_so_once(mesh: Discovered) -> None:
    stranger = mesh.node("stranger", "0:4")
    stranger.environ["MESHNET_SECRET"] = "a-secret-of-another-mesh"
    with processes.serving(stranger):
        wait_until(lambda: "refuses this node" in stranger.log.read_text())
        assert mesh.look()["rows"] == []
    assert stranger.log.read_text().count("refuses this node") == 1
    assert "secret is missing or wrong" in stranger.log.read_text()


def test_a_node_under_an_address_that_is_not_its_own_is_not_believed(mesh: Discovered) -> None:
    front = mesh.node("front", "0:4")
    liar = mesh.node("liar", "0:4")
    liar.environ["MESHNET_URL"] = front.url
    with processes.serving(front, liar):
        mesh.head.wait_ready()
        wait_until(lambda: "Another process answers" in liar.log.read_text())
        assert mesh.row(front)["boot_id"] == get_json(f"{front.url}/status")["boot_id"]
        assert len(mesh.look()["rows"]) == 1
