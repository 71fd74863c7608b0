from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from meshsite.engine import NodeState, Stand
from meshsite.mesh_record import AGAIN_SECONDS, MeshRecord
from nodes.layers import LayerRange
from nodes.mesh_file import MeshFile
from tests.conftest import Clock

MESH = MeshFile("http://h", (), "key", "secret", "mesh-admin", "password", ("http://h",))


def node(name: str, replica: int, stage: int, url: str | None = None) -> NodeState:
    layers = LayerRange(stage, stage + 1)
    return NodeState(name, replica, stage, layers, Stand.READY, f"http://{name}" if url is None else url)


class Stage:
    def __init__(self, folder: Path, clock: Clock) -> None:
        self.folder, self.clock = folder, clock
        self.forgotten: list[set[str]] = []
        self.database_works = True
        self.record = MeshRecord(MESH, folder, self._forget, clock=clock)

    def _forget(self, urls: Collection[str]) -> bool:
        self.forgotten.append(set(urls))
        return self.database_works

    def written(self) -> tuple[str, ...]:
        mesh = MeshFile.read(self.folder)
        assert mesh is not None
        assert replace(mesh, nodes=()) == MESH
        return mesh.nodes


def test_the_file_lists_nodes_in_layer_order_with_those_of_a_stretch_side_by_side(tmp_path: Path, clock: Clock) -> None:
    stage = Stage(tmp_path, clock)
    stage.record.begin([node("a", 1, 1), node("b", 1, 2), node("c", 2, 1), node("d", 2, 2)])
    assert stage.written() == ("http://a", "http://c", "http://b", "http://d")


def test_nodes_that_come_move_and_have_no_place_are_followed(tmp_path: Path, clock: Clock) -> None:
    stage = Stage(tmp_path, clock)
    stage.record.begin([node("a", 1, 1)])
    stage.record.note([node("a", 1, 1), node("b", 2, 1, url="")])
    assert stage.written() == ("http://a",)
    stage.record.note([node("a", 1, 1), node("b", 2, 1, url="http://there")])
    assert stage.written() == ("http://a", "http://there")
    assert stage.forgotten == []
    stage.record.note([node("a", 1, 1), node("b", 2, 1, url="http://elsewhere")])
    assert stage.written() == ("http://a", "http://elsewhere")
    assert stage.forgotten == [{"http://there"}]


def test_the_row_of_a_node_that_left_is_deleted_and_again_in_case_a_keeper_wrote_it_once_more(
    tmp_path: Path, clock: Clock
) -> None:
    stage = Stage(tmp_path, clock)
    stage.record.begin([node("a", 1, 1), node("b", 2, 1)])
    for _ in range(40):
        stage.record.note([node("a", 1, 1)])
        clock.advance(1)
    assert stage.forgotten == [{"http://b"}] * 3


def test_an_address_that_has_a_new_node_is_not_forgotten(tmp_path: Path, clock: Clock) -> None:
    stage = Stage(tmp_path, clock)
    stage.record.begin([node("a", 1, 1), node("b", 2, 1)])
    stage.record.note([node("a", 1, 1)])
    for _ in range(40):
        stage.record.note([node("a", 1, 1), node("c", 2, 1, url="http://b")])
        clock.advance(1)
    assert stage.forgotten == [{"http://b"}]


def test_a_file_that_cannot_be_written_ends_nothing_and_is_written_later(tmp_path: Path, clock: Clock) -> None:
    stage = Stage(tmp_path / "var", clock)
    stage.record.note([node("a", 1, 1)])
    (tmp_path / "var").mkdir()
    stage.record.note([node("a", 1, 1)])
    assert stage.written() == ("http://a",)


def test_what_the_database_could_not_do_is_tried_again_but_not_at_each_look(tmp_path: Path, clock: Clock) -> None:
    stage = Stage(tmp_path, clock)
    stage.database_works = False
    stage.record.begin([node("a", 1, 1)])
    for _ in range(3):
        stage.record.note([])
    assert stage.forgotten == [{"http://a"}]
    stage.database_works = True
    for _ in range(3):
        clock.advance(AGAIN_SECONDS)
        stage.record.note([])
    assert stage.forgotten == [{"http://a"}] * 3, "the second for the one put off and that of 10 s, the third of 30 s"
