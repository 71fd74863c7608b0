from __future__ import annotations

import json
import re
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from meshsite import local_mesh
from meshsite.local_mesh import MeshRefused, Plan, Seating, Secrets, make_plan, parse_stretches
from nodes.layers import LayerRange
from tests.unit.meshsite.children import free_ports


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return make_plan("some/model", 30, 3, 8000, tmp_path / "var", tmp_path)


def test_the_head_takes_the_port_and_the_nodes_those_after_it(plan: Plan) -> None:
    assert plan.head_url == "http://127.0.0.1:8000"
    assert plan.node_urls == ("http://127.0.0.1:8001", "http://127.0.0.1:8002", "http://127.0.0.1:8003")


@pytest.mark.parametrize("shards", [0, -1, 31])
def test_a_shard_without_a_layer_is_refused(tmp_path: Path, shards: int) -> None:
    with pytest.raises(MeshRefused, match=f"--shards {shards}: A model of 30 layers"):
        make_plan("m", 30, shards, 8000, tmp_path, tmp_path)


@pytest.mark.parametrize("port", [0, -5, 65534, 99999])
def test_a_port_that_does_not_exist_is_refused(tmp_path: Path, port: int) -> None:
    with pytest.raises(MeshRefused, match=f"--port {port}: the head's port must lie between 1 and 65533"):
        make_plan("m", 30, 2, port, tmp_path, tmp_path)


def test_heads_for_nodes_on_other_machines_listen_where_these_reach_them(tmp_path: Path) -> None:
    plan = make_plan("m", 30, 2, 8000, tmp_path, tmp_path, heads=2, local_nodes=False, host="10.0.0.1")
    assert plan.head_urls == ("http://10.0.0.1:8000", "http://10.0.0.1:8001")
    assert plan.node_urls == ()


@pytest.mark.parametrize("host", ["", "mesh.example.org", "0.0.0.0", "::1", "10.0.0.300"])  # noqa: S104
def test_a_host_that_is_no_address_is_refused(tmp_path: Path, host: str) -> None:
    with pytest.raises(MeshRefused, match=f"--host {host}: name one IPv4 address"):
        make_plan("m", 30, 2, 8000, tmp_path, tmp_path, local_nodes=False, host=host)


def test_a_mesh_of_processes_keeps_to_loopback(tmp_path: Path) -> None:
    with pytest.raises(MeshRefused, match="keeps to loopback"):
        make_plan("m", 30, 2, 8000, tmp_path, tmp_path, host="10.0.0.1")


def test_replicas_of_a_stretch_stand_side_by_side_in_layer_order(tmp_path: Path) -> None:
    plan = make_plan("m", 30, 2, 8000, tmp_path, tmp_path, replicas=2)
    assert [(seat.name, seat.replica, seat.stage, str(seat.layers), seat.port) for seat in plan.seats] == [
        ("node1", 1, 1, "0:15", 8001),
        ("node2", 2, 1, "0:15", 8002),
        ("node3", 1, 2, "15:30", 8003),
        ("node4", 2, 2, "15:30", 8004),
    ]
    assert local_mesh.mesh_file(plan, Secrets(), "key", "mesh-admin").nodes == plan.node_urls
    assert plan.ports == {"head": 8000, "node1": 8001, "node2": 8002, "node3": 8003, "node4": 8004}


@pytest.mark.parametrize("replicas", [0, -1, 17])
def test_a_number_of_replicas_that_cannot_be_is_refused(tmp_path: Path, replicas: int) -> None:
    with pytest.raises(MeshRefused, match=f"--replicas {replicas}: each shard needs 1 to 16 nodes"):
        make_plan("m", 30, 2, 8000, tmp_path, tmp_path, replicas=replicas)


def test_replicas_need_ports_too(tmp_path: Path) -> None:
    with pytest.raises(MeshRefused, match="between 1 and 65529"):
        make_plan("m", 30, 2, 65530, tmp_path, tmp_path, replicas=3)


def test_several_heads_take_the_first_ports(tmp_path: Path) -> None:
    plan = make_plan("m", 30, 2, 8000, tmp_path, tmp_path, heads=3)
    assert plan.head_urls == ("http://127.0.0.1:8000", "http://127.0.0.1:8001", "http://127.0.0.1:8002")
    assert plan.ports == {"head": 8000, "head2": 8001, "head3": 8002, "node1": 8003, "node2": 8004}


def test_nodes_that_run_elsewhere_take_no_port_here(tmp_path: Path) -> None:
    plan = make_plan("m", 30, 2, 65535, tmp_path, tmp_path, local_nodes=False)
    assert plan.ports == {"head": 65535}
    assert plan.node_urls == ()
    assert [seat.name for seat in plan.seats] == ["node1", "node2"]


def test_names_of_nodes_never_come_twice(tmp_path: Path) -> None:
    seating = Seating(make_plan("m", 30, 2, 8000, tmp_path, tmp_path, replicas=2))
    names = [[seat.name for seat in seating.seats(replica)] for replica in (1, 2, 3, 2)]
    assert names == [["node1", "node3"], ["node2", "node4"], ["node5", "node6"], ["node7", "node8"]]


def test_stretches_by_hand_are_read_in_layer_order() -> None:
    assert parse_stretches("0:10, 10:30", 30) == [LayerRange(0, 10), LayerRange(10, 30)]
    assert parse_stretches("0:7", None) == [LayerRange(0, 7)]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("0:10,11:30", "the layers 10:11 are missing"),
        ("0:10,9:30", "the layers 9:10 are held twice or stand out of order"),
        ("10:30,0:10", "the layers 0:10 are missing"),
        ("0:10,10:29", "the model has 30 layers, and the layers 29:30 are missing"),
        ("0:10,10:31", "the model has 30 layers, and it has no layer 30"),
        ("0:10,10:10", "'10:10' holds no layer"),
        ("0-30", "'0-30' is not start:end"),
        ("", "'' is not start:end"),
    ],
)
def test_stretches_that_do_not_hold_each_layer_once_are_refused(text: str, complaint: str) -> None:
    with pytest.raises(MeshRefused, match=re.escape(complaint)):
        parse_stretches(text, 30)


def test_every_taken_port_is_named_with_the_process_that_wanted_it(tmp_path: Path) -> None:
    port = free_ports(3)
    plan = make_plan("m", 30, 2, port, tmp_path, tmp_path)
    local_mesh.check_ports(plan)
    with socket.socket() as head, socket.socket() as tail:
        for other, offset in ((head, 0), (tail, 2)):
            other.bind(("127.0.0.1", port + offset))
            other.listen()
        with pytest.raises(MeshRefused) as refusal:
            local_mesh.check_ports(plan)
    assert f"{port} for head: taken by another process; {port + 2} for node2: taken" in str(refusal.value)
    assert f"{port + 1} for" not in str(refusal.value)


def test_connections_that_wait_to_be_forgotten_do_not_take_a_port(tmp_path: Path) -> None:
    plan = make_plan("m", 30, 1, free_ports(2), tmp_path, tmp_path)
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", plan.port))
        server.listen()
        client = socket.create_connection(("127.0.0.1", plan.port))
        accepted, _ = server.accept()
        accepted.close()  # the server's side closes first and waits
        client.close()
    local_mesh.check_ports(plan)


def test_a_second_mesh_on_the_same_folder_is_refused_and_says_who_holds_it(tmp_path: Path) -> None:
    holder = (
        "import sys; from pathlib import Path; from meshsite.local_mesh import only_mesh\n"
        "with only_mesh(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", holder, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with (
            pytest.raises(MeshRefused, match=f"already \\(process {process.pid}\\)"),
            local_mesh.only_mesh(tmp_path),
        ):
            raise AssertionError("The lock was given twice.")
        process.kill()
    with local_mesh.only_mesh(tmp_path):  # the kernel has freed the lock of the killed one
        assert (tmp_path / "mesh.lock").exists()


def test_a_mesh_json_of_a_killed_mesh_is_removed_at_the_next_start(tmp_path: Path) -> None:
    (tmp_path / "mesh.json").write_text("{}")
    with local_mesh.only_mesh(tmp_path):
        assert not (tmp_path / "mesh.json").exists()


def test_mesh_json_has_the_agreed_shape_and_is_its_owners_alone(plan: Plan) -> None:
    plan.var_dir.mkdir()
    made = Secrets()
    path = local_mesh.mesh_file(plan, made, "key", "mesh-admin").write(plan.var_dir)
    assert json.loads(path.read_text()) == {
        "head": "http://127.0.0.1:8000",
        "heads": ["http://127.0.0.1:8000"],
        "nodes": list(plan.node_urls),
        "api_key": "key",
        "mesh_secret": made.mesh_secret,
        "admin": {"user": "mesh-admin", "password": made.admin_password},
    }
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
