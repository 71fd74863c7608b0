from __future__ import annotations

import json
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from meshsite import local_mesh
from meshsite.local_mesh import MeshRefused, Plan, Secrets, child_specs, make_plan
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


def test_replicas_of_a_stretch_stand_side_by_side_in_layer_order(tmp_path: Path) -> None:
    plan = make_plan("m", 30, 2, 8000, tmp_path, tmp_path, replicas=2)
    *nodes, head = child_specs(plan, Secrets(), {}, cores=8)
    assert [(node.name, node.env["MESHNET_LAYERS"], node.env["MESHNET_BIND"]) for node in nodes] == [
        ("node1", "0:15", "127.0.0.1:8001"),
        ("node2", "0:15", "127.0.0.1:8002"),
        ("node3", "15:30", "127.0.0.1:8003"),
        ("node4", "15:30", "127.0.0.1:8004"),
    ]
    assert {node.env["MESHNET_THREADS"] for node in nodes} == {"2"}, "8 cores for 4 nodes"
    assert head.env["MESHNET_NODES"] == ",".join(plan.node_urls)
    assert local_mesh.mesh_file(plan, Secrets(), "key", "mesh-admin").nodes == plan.node_urls
    assert plan.ports == [8000, 8001, 8002, 8003, 8004]


@pytest.mark.parametrize("replicas", [0, -1, 17])
def test_a_number_of_replicas_that_cannot_be_is_refused(tmp_path: Path, replicas: int) -> None:
    with pytest.raises(MeshRefused, match=f"--replicas {replicas}: each shard needs 1 to 16 nodes"):
        make_plan("m", 30, 2, 8000, tmp_path, tmp_path, replicas=replicas)


def test_replicas_need_ports_too(tmp_path: Path) -> None:
    with pytest.raises(MeshRefused, match="between 1 and 65529"):
        make_plan("m", 30, 2, 65530, tmp_path, tmp_path, replicas=3)


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


def test_each_process_gets_its_own_role_address_and_layers(plan: Plan) -> None:
    made = Secrets()
    *nodes, head = child_specs(plan, made, {}, cores=8)
    assert [node.name for node in nodes] == ["node1", "node2", "node3"]
    assert [node.env["MESHNET_LAYERS"] for node in nodes] == ["0:10", "10:20", "20:30"]
    assert [node.env["MESHNET_BIND"] for node in nodes] == ["127.0.0.1:8001", "127.0.0.1:8002", "127.0.0.1:8003"]
    assert {node.env["MESHNET_ROLE"] for node in nodes} == {"node"}
    assert head.name == "head"
    assert head.env["MESHNET_ROLE"] == "head"
    assert head.env["MESHNET_BIND"] == "127.0.0.1:8000"
    assert head.env["MESHNET_NODES"] == ",".join(plan.node_urls)
    assert head.env["MESHNET_DJANGO_SECRET_KEY"] == made.django_key
    assert all(made.django_key not in node.env.values() for node in nodes)
    for spec in (*nodes, head):
        assert spec.env["MESHNET_SECRET"] == made.mesh_secret
        assert spec.env["MESHNET_MODEL"] == "some/model"
        assert spec.env["MESHNET_VAR_DIR"] == str(plan.var_dir)


def test_secrets_are_passed_in_the_environment_and_not_on_the_command_line(plan: Plan) -> None:
    made = Secrets()
    for spec in child_specs(plan, made, {}, cores=8):
        assert not {made.mesh_secret, made.django_key, made.admin_password} & set(spec.command)


def test_secrets_are_long_new_and_not_shown_in_a_traceback() -> None:
    one, other = Secrets(), Secrets()
    assert len({one.mesh_secret, other.mesh_secret, one.django_key, other.django_key, one.admin_password}) == 5
    assert min(len(one.mesh_secret), len(one.django_key)) >= 43
    assert len(one.admin_password) >= 16
    assert one.mesh_secret not in repr(one)
    assert one.admin_password not in repr(one)


@pytest.mark.parametrize(
    ("environ", "cores", "threads"),
    [({}, 8, "2"), ({}, 2, "1"), ({"MESHNET_THREADS": "0"}, 8, "2"), ({"MESHNET_THREADS": "5"}, 8, "5")],
)
def test_nodes_share_the_cores_unless_the_user_says_otherwise(
    plan: Plan, environ: dict[str, str], cores: int, threads: str
) -> None:
    specs = child_specs(plan, Secrets(), environ, cores=cores)
    assert {spec.env["MESHNET_THREADS"] for spec in specs} == {threads}


def test_the_users_other_options_hold_for_every_process(plan: Plan) -> None:
    specs = child_specs(plan, Secrets(), {"MESHNET_KV_TTL_SECONDS": "5", "PATH": "/bin"}, cores=2)
    assert {(spec.env["MESHNET_KV_TTL_SECONDS"], spec.env["PATH"]) for spec in specs} == {("5", "/bin")}


def test_what_the_user_has_set_for_another_mesh_does_not_get_in_the_way(plan: Plan) -> None:
    environ = {
        "MESHNET_SECRET": "of another mesh",
        "MESHNET_SECRET_FILE": "/run/secrets/mesh",
        "MESHNET_SECRET_ALSO": "of another mesh, too",
        "MESHNET_TLS_CERT": "/etc/node.pem",
        "MESHNET_TLS_KEY_FILE": "/etc/node.key",
        "MESHNET_NODE_CA": "/etc/ca.pem",
        "MESHNET_HTTPS": "on",
        "MESHNET_HEADS": "https://elsewhere",
        "MESHNET_NODES": "http://elsewhere:1",
        "MESHNET_LAYERS": "0:1",
        "GUNICORN_CMD_ARGS": "--workers 4",
    }
    made = Secrets()
    *nodes, head = child_specs(plan, made, environ, cores=2)
    assert all("MESHNET_NODES" not in node.env for node in nodes)
    assert "MESHNET_LAYERS" not in head.env
    for spec in (*nodes, head):
        assert spec.env["MESHNET_SECRET"] == made.mesh_secret
        assert "MESHNET_SECRET_FILE" not in spec.env
        for name in ("MESHNET_SECRET_ALSO", "MESHNET_TLS_", "MESHNET_NODE_CA", "MESHNET_HTTPS"):
            assert not [found for found in spec.env if found.startswith(name)]
        assert "https://elsewhere" not in spec.env.values()
        assert "GUNICORN_CMD_ARGS" not in spec.env


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
        "nodes": list(plan.node_urls),
        "api_key": "key",
        "mesh_secret": made.mesh_secret,
        "admin": {"user": "mesh-admin", "password": made.admin_password},
    }
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
