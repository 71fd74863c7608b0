from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.apps import apps
from django.db import OperationalError, connection
from django.utils import timezone

from nodes import registry
from nodes.mesh_file import MeshFile
from nodes.models import Node
from nodes.registry import NoMesh


@pytest.fixture(autouse=True)
def nothing_is_known(settings: Any, tmp_path: Path) -> None:
    settings.MESHNET_NODES = []
    settings.MESHNET_SECRET = ""
    settings.MESHNET_VAR_DIR = tmp_path


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What a running head puts on the app of the nodes."""
    runtime = SimpleNamespace(clients=[SimpleNamespace(url="local:")])
    monkeypatch.setattr(apps.get_app_config("nodes"), "client_provider", lambda: runtime.clients)
    return runtime


def write_mesh_file(folder: Path) -> None:
    MeshFile(
        head="http://127.0.0.1:8000",
        nodes=("http://127.0.0.1:8001", "http://127.0.0.1:8002"),
        api_key="k",
        mesh_secret="secret-of-the-file",
        admin_user="u",
        admin_password="p",
    ).write(folder)


def authorization(client: Any) -> str:
    return client._authorization["Authorization"]


def test_without_any_mesh_it_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NoMesh) as caught:
        registry.node_clients()
    for word in ("MESHNET_NODES", "MESHNET_SECRET", "manage.py mesh", str(tmp_path / "mesh.json")):
        assert word in caught.value.detail


def test_the_settings_name_the_nodes(settings: Any) -> None:
    settings.MESHNET_NODES = ["http://one:1/", "http://two:2", "http://one:1"]
    settings.MESHNET_SECRET = "secret-of-the-settings"
    clients = registry.node_clients()
    assert [client.url for client in clients] == ["http://one:1", "http://two:2"]
    assert {authorization(client) for client in clients} == {"Bearer secret-of-the-settings"}


def test_nodes_without_a_secret_are_refused_with_advice(settings: Any) -> None:
    settings.MESHNET_NODES = ["http://one:1"]
    with pytest.raises(NoMesh, match="MESHNET_SECRET is not"):
        registry.node_clients()


def test_a_local_mesh_is_found_in_its_file(tmp_path: Path) -> None:
    write_mesh_file(tmp_path)
    clients = registry.node_clients()
    assert [client.url for client in clients] == ["http://127.0.0.1:8001", "http://127.0.0.1:8002"]
    assert {authorization(client) for client in clients} == {"Bearer secret-of-the-file"}


def test_the_settings_win_over_the_file(settings: Any, tmp_path: Path) -> None:
    write_mesh_file(tmp_path)
    settings.MESHNET_NODES = ["http://one:1"]
    settings.MESHNET_SECRET = "secret-of-the-settings"
    assert [client.url for client in registry.node_clients()] == ["http://one:1"]


@pytest.mark.parametrize("content", ["{", "{}"])
def test_a_broken_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "mesh.json").write_text(content)
    with pytest.raises(NoMesh, match=r"mesh\.json"):
        registry.node_clients()


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "mesh.json").mkdir()  # a folder cannot be read as a file, for root neither
    with pytest.raises(NoMesh, match=r"mesh\.json cannot be read"):
        registry.node_clients()


def test_a_running_head_gives_its_own_clients(settings: Any, head: SimpleNamespace) -> None:
    settings.MESHNET_NODES = ["http://one:1"]
    settings.MESHNET_SECRET = "secret-of-the-settings"
    assert registry.node_clients() == head.clients


def test_a_head_without_nodes_has_none_whatever_the_settings_say(settings: Any, head: SimpleNamespace) -> None:
    settings.MESHNET_NODES = ["http://one:1"]
    head.clients = []
    assert registry.node_clients() == []


def test_a_provider_without_a_head_leaves_it_to_the_settings(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apps.get_app_config("nodes"), "client_provider", lambda: None)
    settings.MESHNET_NODES = ["http://one:1"]
    settings.MESHNET_SECRET = "secret-of-the-settings"
    assert [client.url for client in registry.node_clients()] == ["http://one:1"]


@pytest.fixture
def announced(db: None) -> None:
    Node.objects.create(url="http://127.0.0.1:9001", boot_id="one", announced_at=timezone.now())


@pytest.mark.django_db
def test_nodes_that_announced_themselves_come_after_those_of_the_settings(announced: None, settings: Any) -> None:
    settings.MESHNET_SECRET = "secret-of-the-settings"
    assert [client.url for client in registry.node_clients()] == ["http://127.0.0.1:9001"]
    settings.MESHNET_NODES = ["http://one:1"]
    assert [client.url for client in registry.node_clients()] == ["http://one:1", "http://127.0.0.1:9001"]


@pytest.mark.django_db
def test_they_come_after_those_of_a_local_mesh_too(announced: None, tmp_path: Path) -> None:
    write_mesh_file(tmp_path)
    clients = registry.node_clients()
    assert [client.url[-4:] for client in clients] == ["8001", "8002", "9001"]
    assert {authorization(client) for client in clients} == {"Bearer secret-of-the-file"}


@pytest.mark.django_db
def test_announced_nodes_without_a_secret_are_no_mesh(announced: None) -> None:
    with pytest.raises(NoMesh):
        registry.node_clients()


@pytest.mark.django_db
def test_a_node_has_no_database_to_look_into(announced: None, settings: Any) -> None:
    settings.MESHNET_SECRET, settings.SERVES_HEAD = "secret-of-the-settings", False
    with pytest.raises(NoMesh):
        registry.node_clients()


@pytest.mark.django_db
def test_a_database_that_cannot_be_read_names_no_node(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    def fail(now: Any) -> list[str]:
        raise OperationalError("no such table: nodes_node")

    monkeypatch.setattr("nodes.announcements.roster", fail)
    settings.MESHNET_SECRET = "secret-of-the-settings"
    with pytest.raises(NoMesh):
        registry.node_clients()


def test_no_database_is_made_by_looking(monkeypatch: pytest.MonkeyPatch, settings: Any, tmp_path: Path) -> None:
    monkeypatch.undo()  # this test may look
    monkeypatch.setitem(connection.settings_dict, "NAME", tmp_path / "meshnet.sqlite3")
    monkeypatch.setattr(connection, "vendor", "sqlite")
    settings.MESHNET_SECRET = "secret-of-the-settings"
    with pytest.raises(NoMesh):
        registry.node_clients()
    assert list(tmp_path.iterdir()) == []
