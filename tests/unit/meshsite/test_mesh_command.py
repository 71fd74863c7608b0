from __future__ import annotations

import io
import json
import os
import shlex
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import authenticate
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import InterfaceError, OperationalError
from django.http import HttpRequest

from generation.models import APIKey
from meshsite import engines, local_access
from meshsite.engine import EngineRefused, NodeSpec, Say, Wait
from meshsite.leaving_node import LeavingNode
from meshsite.load_watch import LoadWatch
from meshsite.local_engine import LocalEngine, local_child
from meshsite.local_mesh import Plan, Secrets, only_mesh
from meshsite.management.commands import mesh as mesh_command
from meshsite.mesh_processes import head_specs
from meshsite.planned_split import PlannedStage
from meshsite.stop_signals import Stopped
from meshsite.supervisor import ChildSpec, is_ready
from nodes.layers import LayerRange
from nodes.mesh_file import MeshFile
from tests.unit.meshsite.children import fake_spec, free_ports

# The command closes its connections before it starts children.
pytestmark = pytest.mark.django_db(transaction=True)


class Stop:
    """In place of the signals: asks for the stop once the mesh is ready, after a look at it."""

    def __init__(self, var_dir: Path, look: Callable[[], None]) -> None:
        self._var_dir = var_dir
        self._look = look

    def __enter__(self) -> Stop:
        return self

    def __exit__(self, *exc: object) -> None:
        return

    def wait(self, seconds: float) -> bool:
        if seconds != mesh_command.WATCH_SECONDS:
            return False
        self._look()
        return True


class Run:
    """One run of the command with cheap children. `modes` names the mode of single ones."""

    def __init__(self, var_dir: Path, model: Path) -> None:
        self.var_dir = var_dir
        self.model = model
        self.port = free_ports(5)
        self.modes: Mapping[str, str] = {}
        self.specs: list[ChildSpec] = []
        self.looks: list[MeshFile | None] = []
        self.out = io.StringIO()
        self.err = io.StringIO()

    def __call__(self, *arguments: str) -> None:
        command = mesh_command.Command(stdout=self.out, stderr=self.err)
        self.with_cheap_children(command)
        command.signals = lambda: Stop(self.var_dir, lambda: self.looks.append(MeshFile.read(self.var_dir)))
        call_command(command, "--model", str(self.model), "--port", str(self.port), *arguments)

    def with_cheap_children(self, command: mesh_command.Command) -> None:
        command.head_specs = lambda *arguments: [self._fake(spec) for spec in head_specs(*arguments)]
        command.engine = self._engine

    def _engine(self, plan: Plan, made: Secrets, environ: Mapping[str, str], say: Say) -> LocalEngine:
        real = local_child(environ, plan.var_dir, plan.base_dir)

        def child(spec: NodeSpec, port: int) -> ChildSpec:
            return self._fake(real(spec, port))

        def leave(url: str) -> LeavingNode:
            raise AssertionError("Nobody retires a node here.")

        return LocalEngine(
            plan.var_dir / "logs",
            say,
            make_child=child,
            leave=leave,
            ports={seat.name: seat.port for seat in plan.seats},
            next_port=self.port + 10,
        )

    def _fake(self, spec: ChildSpec) -> ChildSpec:
        fake = fake_spec(spec.name, int(spec.url.rpartition(":")[2]), FAKE_MODE=self.modes.get(spec.name, "serve"))
        self.specs.append(replace(fake, env={**spec.env, **fake.env}))
        return self.specs[-1]


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """The command keeps what it writes to its user; the tests after these have their own again."""
    former = os.umask(0o022)
    os.umask(former)
    yield
    os.umask(former)


@pytest.fixture
def run(tmp_path: Path, settings: Any) -> Run:
    settings.MESHNET_VAR_DIR = tmp_path / "var"
    model = tmp_path / "my-model"
    model.mkdir()
    (model / "config.json").write_text('{"num_hidden_layers": 4}')
    (model / "model.safetensors").write_bytes(b"")
    return Run(tmp_path / "var", model)


def test_it_starts_one_head_and_two_nodes_and_says_where_everything_is(run: Run) -> None:
    run()
    assert sorted(spec.name for spec in run.specs) == ["head", "node1", "node2"]
    said = run.out.getvalue()
    mesh = run.looks[0]
    assert mesh is not None
    assert f"http://127.0.0.1:{run.port}/v1/chat/completions" in said
    assert f"http://127.0.0.1:{run.port}/admin/   user mesh-admin   password {mesh.admin_password}" in said
    assert mesh.api_key in said
    assert "Ctrl-C ends the mesh." in said
    for name in ("node1", "node2", "head"):
        assert f"{name} is ready after" in said


def test_with_replicas_each_stretch_has_several_nodes_and_the_message_says_which(run: Run) -> None:
    run("--replicas", "2")
    assert {spec.name: spec.env.get("MESHNET_LAYERS") for spec in run.specs} == {
        "node1": "0:2", "node2": "0:2", "node3": "2:4", "node4": "2:4", "head": None,
    }  # fmt: skip
    said = run.out.getvalue()
    assert "Starting a head and 4 nodes, 2 to each stretch, with the layers 0:2, 2:4 of my-model" in said
    assert "  Nodes    0:2 node1, node2; 2:4 node3, node4\n" in said
    mesh = run.looks[0]
    assert mesh is not None
    assert mesh.nodes == tuple(f"http://127.0.0.1:{run.port + offset}" for offset in (1, 2, 3, 4))


def test_several_heads_take_the_first_ports_and_know_the_same_nodes(run: Run) -> None:
    run("--heads", "2", "--json")
    data = json.loads(run.out.getvalue())
    heads = [f"http://127.0.0.1:{run.port}", f"http://127.0.0.1:{run.port + 1}"]
    assert (data["head"], data["heads"]) == (heads[0], heads)
    assert data["nodes"] == [f"http://127.0.0.1:{run.port + offset}" for offset in (2, 3)]
    assert set(data["pids"]) == {"mesh", "head", "head2", "node1", "node2"}
    environments = {spec.name: spec.env for spec in run.specs}
    assert environments["node1"]["MESHNET_HEADS"] == ",".join(heads)
    assert environments["head"]["MESHNET_DJANGO_SECRET_KEY"] == environments["head2"]["MESHNET_DJANGO_SECRET_KEY"]
    assert "MESHNET_NODES" not in environments["head2"]


@pytest.mark.parametrize("heads", ["0", "17"])
def test_a_number_of_heads_that_cannot_be_is_refused(run: Run, heads: str) -> None:
    with pytest.raises(CommandError, match=f"--heads {heads}: a mesh has 1 to 16 heads"):
        run("--heads", heads)


def test_layers_can_be_split_by_hand(run: Run) -> None:
    run("--layers", "0:1,1:4")
    layers = {spec.name: spec.env.get("MESHNET_LAYERS") for spec in run.specs}
    assert layers == {"node1": "0:1", "node2": "1:4", "head": None}


def test_on_other_machines_layers_are_split_by_what_these_hold(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def plan_split(model: str, shards: int, machines: Any, **options: Any) -> list[PlannedStage]:
        asked.append({"model": model, "shards": shards, **options})
        return [
            PlannedStage(LayerRange(0, 1), "a", 10, 1.0, 0.0, cache_bytes=5),
            PlannedStage(LayerRange(1, 4), "b", 30, 3.0, 0.0, cache_bytes=7),
        ]

    monkeypatch.setattr(mesh_command, "plan_split", plan_split)
    run("--engine", "ray")
    told = {spec.name: spec.env for spec in run.specs}
    assert (told["node1"]["MESHNET_LAYERS"], told["node2"]["MESHNET_LAYERS"]) == ("0:1", "1:4")
    assert told["node2"]["MESHNET_KV_MAX_BYTES"] == "7"
    assert "with the layers 0:1, 1:4 of my-model" in run.out.getvalue()
    assert (asked[0]["shards"], asked[0]["layers"], asked[0]["replicas"]) == (2, None, 1)


def test_a_split_that_cannot_be_ends_the_engine_and_the_start(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[LocalEngine] = []

    def plan_split(*arguments: Any, **options: Any) -> list[PlannedStage]:
        raise EngineRefused("The machines have too little memory.")

    monkeypatch.setattr(mesh_command, "plan_split", plan_split)
    monkeypatch.setattr(LocalEngine, "stop", lambda self, wait: ended.append(self))
    with pytest.raises(CommandError, match="The machines have too little memory"):
        run("--engine", "ray")
    assert len(ended) == 1


def test_a_stop_while_machines_are_measured_ends_the_engine_and_is_no_error(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[LocalEngine] = []

    def plan_split(*arguments: Any, wait: Wait, **options: Any) -> list[PlannedStage]:
        raise Stopped()

    monkeypatch.setattr(mesh_command, "plan_split", plan_split)
    monkeypatch.setattr(LocalEngine, "stop", lambda self, wait: ended.append(self))
    run("--engine", "ray")
    assert run.out.getvalue().splitlines()[-1] == "Stopped before the mesh was ready."
    assert len(ended) == 1


@pytest.mark.parametrize("error", [InterfaceError, OperationalError])
def test_rows_that_cannot_be_deleted_now_are_no_error_and_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    steps: list[str] = []

    def forget(urls: Any) -> None:
        steps.append("forget")
        raise error("the database is away")

    monkeypatch.setattr(local_access, "wait_briefly", lambda connection: steps.append("wait briefly"))
    monkeypatch.setattr(local_access, "forget_nodes", forget)
    assert not mesh_command._forget({"http://a"})
    assert steps == ["wait briefly", "forget"]


def test_layers_that_do_not_hold_the_model_once_are_refused(run: Run) -> None:
    with pytest.raises(CommandError, match="--layers 0:1,2:4: the layers 1:2 are missing"):
        run("--layers", "0:1,2:4")


def test_the_engine_ray_without_its_library_says_how_to_get_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    command = mesh_command.Command(stdout=run.out, stderr=run.err)
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    with pytest.raises(CommandError, match=r"pip install -r requirements-ray.txt"):
        call_command(command, "--engine", "ray", "--model", str(run.model), "--port", str(run.port))
    assert not APIKey.objects.exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--address", "10.0.0.1:6379"], "--address 10.0.0.1:6379 is for --engine ray: name both"),
        (["--engine", "ray", "--address", "bogus"], "--address bogus: name a Ray cluster as host:port"),
        (["--engine", "ray", "--address", "127.0.0.1:1"], "127.0.0.1:1 cannot be used: nobody answers there"),
    ],
)
def test_an_address_that_cannot_be_is_refused_before_anything_is_made(
    run: Run, monkeypatch: pytest.MonkeyPatch, arguments: list[str], complaint: str
) -> None:
    command = mesh_command.Command(stdout=run.out, stderr=run.err)
    monkeypatch.setattr(engines, "find_spec", lambda name: object())
    # Where it is not refused, this ends the start.
    monkeypatch.setattr(
        "meshsite.supervisor.Supervisor.__init__", lambda *arguments: (_ for _ in ()).throw(EngineRefused("too late"))
    )
    with pytest.raises(CommandError, match=complaint):
        call_command(command, "--model", str(run.model), "--port", str(run.port), *arguments)
    assert not APIKey.objects.exists()


def test_key_and_password_are_those_of_the_database(run: Run) -> None:
    run()
    mesh = run.looks[0]
    assert mesh is not None
    assert APIKey.objects.usable(mesh.api_key) is not None
    assert authenticate(HttpRequest(), username=mesh.admin_user, password=mesh.admin_password) is not None


def test_the_printed_curl_line_is_one_that_a_shell_takes(run: Run) -> None:
    run()
    line = next(line for line in run.out.getvalue().splitlines() if line.startswith("curl "))
    words = shlex.split(line)
    assert words[1] == f"http://127.0.0.1:{run.port}/v1/chat/completions"
    assert json.loads(words[-1]) == {
        "model": "my-model",
        "temperature": 0,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
    }


def test_json_prints_one_line_with_everything_and_the_rest_elsewhere(run: Run) -> None:
    run("--json", "--shards", "1")
    mesh = run.looks[0]
    assert mesh is not None
    [line] = run.out.getvalue().splitlines()
    data = json.loads(line)
    assert {name: data[name] for name in mesh.as_json()} == mesh.as_json()
    assert set(data["pids"]) == {"mesh", "node1", "head"}
    assert data["model"] == "my-model"
    assert "head is ready" in run.err.getvalue()


def test_mesh_json_is_there_while_the_mesh_runs_and_gone_afterwards(run: Run) -> None:
    run()
    assert run.looks[0] is not None
    assert run.looks[0].nodes == (f"http://127.0.0.1:{run.port + 1}", f"http://127.0.0.1:{run.port + 2}")
    assert not (run.var_dir / "mesh.json").exists()


def test_with_autoscaling_the_heads_are_not_watched_any_more_once_they_are_told_to_end(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    launcher: Any = vars(mesh_command)["Launcher"]
    stop_watch, stop_mesh = LoadWatch.stop, launcher.stop
    monkeypatch.setattr(LoadWatch, "stop", lambda self: (done.append("watch"), stop_watch(self)))
    monkeypatch.setattr(launcher, "stop", lambda self, wait: (done.append("mesh"), stop_mesh(self, wait)))
    run("--max-replicas", "2")
    assert done[:2] == ["watch", "mesh"]


def test_a_control_socket_that_cannot_be_made_ends_the_start_with_the_reason(run: Run) -> None:
    (run.var_dir / "mesh.sock").mkdir(parents=True)
    with pytest.raises(CommandError, match=r"mesh\.sock cannot be made: .*Is a directory"):
        run()
    assert not any(is_ready(spec.url) for spec in run.specs)


def test_afterwards_nothing_is_left_running(run: Run) -> None:
    run()
    assert not any(is_ready(spec.url) for spec in run.specs)
    with only_mesh(run.var_dir):
        pass


def test_a_taken_port_is_an_error_before_anything_is_touched(run: Run) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", run.port + 2))
        other.listen()
        with pytest.raises(CommandError, match=f"{run.port + 2} for node2: taken by another process"):
            run()
    assert run.specs == []
    assert not APIKey.objects.exists()


def test_a_node_that_refuses_ends_the_start_with_its_reason_and_leaves_nothing(run: Run) -> None:
    run.modes = {"node2": "refuse"}
    with pytest.raises(CommandError, match="node2 cannot serve: the shoe does not fit"):
        run()
    assert run.looks == []
    assert not (run.var_dir / "mesh.json").exists()
    assert not any(is_ready(spec.url) for spec in run.specs)


def test_more_shards_than_layers_are_refused(run: Run) -> None:
    with pytest.raises(CommandError, match="--shards 5: A model of 4 layers can be split into 1 to 4 shards"):
        run("--shards", "5")


def test_a_second_mesh_on_the_same_folder_is_refused(run: Run) -> None:
    with only_mesh(run.var_dir), pytest.raises(CommandError, match=r"A mesh is running on .* already"):
        run()


def test_a_model_that_is_nowhere_is_refused_with_the_ways_to_name_one(run: Run) -> None:
    run.model = run.model / "nowhere"
    with pytest.raises(CommandError, match="neither SmolLM2-135M-Instruct, nor a folder, nor a hub id"):
        run()


def test_a_role_in_the_environment_is_refused(run: Run, settings: Any) -> None:
    settings.ROLE = "node"
    with pytest.raises(CommandError, match="MESHNET_ROLE is set"):
        run()


def test_a_stop_during_the_start_ends_quietly(run: Run) -> None:
    command: Any = mesh_command.Command(stdout=run.out, stderr=run.err)
    run.with_cheap_children(command)
    stop = Stop(run.var_dir, lambda: None)
    stop.wait = lambda seconds: seconds > 0  # type: ignore[method-assign]
    command.signals = lambda: stop
    call_command(command, "--model", str(run.model), "--port", str(run.port))
    assert run.out.getvalue().endswith("Stopped before the mesh was ready.\n")
    assert not any(is_ready(spec.url) for spec in run.specs)
