from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from meshsite.local_engine import local_child
from meshsite.local_mesh import Plan, Secrets, make_plan
from meshsite.mesh_processes import head_specs, node_specs
from meshsite.supervisor import ChildSpec


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return make_plan("some/model", 30, 3, 8000, tmp_path / "var", tmp_path)


def children(plan: Plan, made: Secrets, environ: Mapping[str, str], *, cores: int) -> list[ChildSpec]:
    """The nodes as the local engine would start them, and the heads."""
    child = local_child(environ, plan.var_dir, plan.base_dir)
    nodes = node_specs(plan, made, environ, plan.seats, cores=cores)
    return [
        *(child(node, seat.port) for node, seat in zip(nodes, plan.seats, strict=True)),
        *head_specs(plan, made, environ),
    ]


def test_each_process_gets_its_own_role_address_and_layers(plan: Plan) -> None:
    made = Secrets()
    *nodes, head = children(plan, made, {}, cores=8)
    assert [node.name for node in nodes] == ["node1", "node2", "node3"]
    assert [node.env["MESHNET_LAYERS"] for node in nodes] == ["0:10", "10:20", "20:30"]
    assert [node.env["MESHNET_BIND"] for node in nodes] == ["127.0.0.1:8001", "127.0.0.1:8002", "127.0.0.1:8003"]
    assert {node.env["MESHNET_ROLE"] for node in nodes} == {"node"}
    assert head.name == "head"
    assert head.env["MESHNET_ROLE"] == "head"
    assert head.env["MESHNET_BIND"] == "127.0.0.1:8000"
    assert "MESHNET_NODES" not in head.env
    assert {node.env["MESHNET_HEADS"] for node in nodes} == {"http://127.0.0.1:8000"}
    assert [node.env["MESHNET_URL"] for node in nodes] == list(plan.node_urls)
    assert head.env["MESHNET_DJANGO_SECRET_KEY"] == made.django_key
    assert all(made.django_key not in node.env.values() for node in nodes)
    for spec in (*nodes, head):
        assert spec.env["MESHNET_SECRET"] == made.mesh_secret
        assert spec.env["MESHNET_MODEL"] == "some/model"
        assert spec.env["MESHNET_VAR_DIR"] == str(plan.var_dir)


def test_secrets_are_passed_in_the_environment_and_not_on_the_command_line(plan: Plan) -> None:
    made = Secrets()
    for spec in children(plan, made, {}, cores=8):
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
    *nodes, _ = children(plan, Secrets(), environ, cores=cores)
    assert {node.env["MESHNET_THREADS"] for node in nodes} == {threads}


def test_the_users_other_options_hold_for_every_process(plan: Plan) -> None:
    specs = children(plan, Secrets(), {"MESHNET_KV_TTL_SECONDS": "5", "PATH": "/bin"}, cores=2)
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
    *nodes, head = children(plan, made, environ, cores=2)
    assert all("MESHNET_NODES" not in node.env for node in nodes)
    assert "MESHNET_LAYERS" not in head.env
    for spec in (*nodes, head):
        assert spec.env["MESHNET_SECRET"] == made.mesh_secret
        assert "MESHNET_SECRET_FILE" not in spec.env
        for name in ("MESHNET_SECRET_ALSO", "MESHNET_TLS_", "MESHNET_NODE_CA", "MESHNET_HTTPS"):
            assert not [found for found in spec.env if found.startswith(name)]
        assert "https://elsewhere" not in spec.env.values()
        assert "GUNICORN_CMD_ARGS" not in spec.env


def test_what_is_a_heads_alone_and_where_a_node_is_does_not_travel_with_its_settings(plan: Plan) -> None:
    environ = {
        "MESHNET_DJANGO_SECRET_KEY": "x" * 50,
        "MESHNET_BIND": "0.0.0.0:1",
        "MESHNET_VAR_DIR": "/elsewhere",
        "DATABASE_URL": "postgres://me:secret@db/x",
        "HOME": "/home/me",
        "MESHNET_KV_TTL_SECONDS": "5",
        "HF_TOKEN": "hf_x",
    }
    made = Secrets()
    for spec in node_specs(plan, made, environ, plan.seats, cores=2):
        assert set(spec.settings) == {
            "DJANGO_SETTINGS_MODULE", "HF_TOKEN", "MESHNET_HEADS", "MESHNET_KV_TTL_SECONDS", "MESHNET_LAYERS",
            "MESHNET_MODEL", "MESHNET_ROLE", "MESHNET_SECRET", "MESHNET_THREADS", "PYTHONUNBUFFERED",
        }  # fmt: skip
        assert made.mesh_secret not in repr(spec)
