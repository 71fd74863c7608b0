"""What an actor does for its node, on a supervisor of the test's own."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from meshsite import ray_node
from meshsite.ray_actor import Order
from meshsite.ray_node import RayNode, can_bind, free_port, node_environment
from meshsite.supervisor import ChildSpec
from nodes.model_files import DEFAULT_MODEL
from tests.processes import wait_until


class FakeSupervisor:
    """Runs its child as the test says, by what `process`, `ready_at`, `start_at` and `refusal` are set to."""

    def __init__(self, specs: Sequence[ChildSpec], log_dir: Path, say: Callable[[str], None]) -> None:
        (spec,) = specs
        self.log_dir = log_dir
        self.say = say
        self.child = SimpleNamespace(
            spec=spec,
            process="runs",
            ready_at=None,
            start_at=0.0,
            log=SimpleNamespace(refusal=None, path=log_dir / f"{spec.name}.log"),
        )
        self.children = [self.child]
        self.steps = 0
        self.is_stopped = False

    def __enter__(self) -> FakeSupervisor:
        return self

    def __exit__(self, *exc: object) -> None:
        self.child.process = None

    def step(self) -> None:
        self.steps += 1

    def stop(self, wait: Callable[[float], bool]) -> None:
        self.is_stopped = True


class FakeLeaving:
    """A node that may end when the test says so."""

    def __init__(self) -> None:
        self.may_end = False
        self.asked: list[tuple[str, str, float]] = []
        self.has_ended = False

    def __call__(self, url: str, secret: str, seconds: float) -> Any:
        self.asked.append((url, secret, seconds))
        return self

    def step(self) -> bool:
        return self.may_end

    def end(self) -> None:
        self.has_ended = True


class Actor:
    """A node and the supervisors that it made, one after the other."""

    def __init__(self, var_dir: Path, **order: Any) -> None:
        self.made: list[FakeSupervisor] = []
        self.leaving = FakeLeaving()
        settings = {"MESHNET_MODEL": "/model", "MESHNET_SECRET": "s", **order.pop("settings", {})}
        self.node = RayNode(
            Order("node1", settings, "/project", str(var_dir), **order),
            "127.0.0.1",
            supervise=self.supervise,
            leave=self.leaving,
            environ={"PATH": "/bin", "MESHNET_SECRET": "another mesh's", "RAY_JOB_ID": "7"},
        )

    def supervise(self, *arguments: Any) -> FakeSupervisor:
        self.made.append(FakeSupervisor(*arguments))
        return self.made[-1]

    @property
    def child(self) -> Any:
        return self.made[-1].child

    def is_at(self, stand: str) -> bool:
        return bool(self.node.look()["stand"] == stand)

    def wait_for(self, stand: str) -> dict[str, Any]:
        wait_until(lambda: self.is_at(stand), 5, f"the node is not {stand} but {self.node.look()}")
        return self.node.look()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOOK_SECONDS", "AGAIN_SECONDS", "PORT_TAKEN_SECONDS"):
        monkeypatch.setattr(ray_node, name, 0.01)


@pytest.fixture
def actor(tmp_path: Path) -> Iterator[Actor]:
    actor = Actor(tmp_path)
    actor.node.start()
    wait_until(lambda: actor.made, 5)
    yield actor
    actor.node.kill()
    assert actor.is_at("left")


def test_a_node_is_told_its_address_and_nothing_of_another_mesh(actor: Actor, tmp_path: Path) -> None:
    spec = actor.child.spec
    port = spec.url.rpartition(":")[2]
    assert spec.env == {
        "PATH": "/bin",
        "PYTHONUNBUFFERED": "1",
        "DJANGO_SETTINGS_MODULE": "meshsite.settings",
        "MESHNET_MODEL": "/model",
        "MESHNET_SECRET": "s",
        "MESHNET_VAR_DIR": str(tmp_path),
        "MESHNET_BIND": f"127.0.0.1:{port}",
        "MESHNET_URL": f"http://127.0.0.1:{port}",
        "MESHNET_THREADS": "1",
    }
    assert (spec.folder, spec.name) == (Path("/project"), "node1")


def test_it_is_starting_and_then_ready(actor: Actor) -> None:
    assert actor.wait_for("starting")["url"] == actor.child.spec.url
    actor.child.ready_at = 1.0
    assert actor.wait_for("ready")["url"] == actor.child.spec.url


def test_an_end_is_waited_out_by_the_same_supervisor(actor: Actor) -> None:
    actor.child.process = None
    assert "started again" in actor.wait_for("waiting")["reason"]
    actor.child.process = "runs"
    actor.wait_for("starting")
    assert len(actor.made) == 1


def test_a_refusal_is_the_end_of_all_tries(actor: Actor) -> None:
    actor.child.log.refusal, actor.child.process, actor.child.start_at = "no such model", None, None
    assert actor.wait_for("refused")["reason"] == "no such model"
    assert len(actor.made) == 1


def test_what_never_answered_is_tried_again_for_ever(actor: Actor) -> None:
    for count in (2, 3, 4):
        actor.child.process = actor.child.start_at = None
        wait_until(lambda count=count: len(actor.made) >= count, 5)


def test_a_port_that_somebody_took_meanwhile_is_given_up(actor: Actor) -> None:
    address, port = actor.child.spec.env["MESHNET_BIND"].split(":")
    with socket.socket() as taken:
        taken.bind((address, int(port)))
        taken.listen()
        actor.child.process = None
        wait_until(lambda: len(actor.made) == 2, 5)
    assert actor.child.spec.env["MESHNET_BIND"] != f"{address}:{port}"


def test_lines_are_given_to_the_launcher_once(actor: Actor) -> None:
    actor.made[0].say("node1 is ready after 3 s.")
    assert actor.node.look()["lines"] == ["node1 is ready after 3 s."]
    assert actor.node.look()["lines"] == []


def test_a_retired_node_ends_once_it_has_drained(actor: Actor) -> None:
    actor.child.ready_at = 1.0
    url = actor.wait_for("ready")["url"]
    actor.node.retire(60.0)
    actor.wait_for("leaving")
    wait_until(lambda: actor.leaving.asked, 5)
    assert not actor.made[0].is_stopped
    actor.leaving.may_end = True
    actor.wait_for("left")
    assert actor.made[0].is_stopped and actor.leaving.has_ended
    assert actor.leaving.asked == [(url, "s", 60.0)]


def test_a_retired_node_that_is_stopped_is_not_asked_any_more(actor: Actor) -> None:
    actor.child.ready_at = 1.0
    actor.node.retire(60.0)
    wait_until(lambda: actor.leaving.asked, 5)
    actor.node.stop()
    actor.wait_for("left")
    assert actor.leaving.has_ended


def test_a_retired_node_that_does_not_serve_ends_at_once(actor: Actor) -> None:
    actor.node.retire(60.0)
    actor.wait_for("left")


def test_a_refused_node_can_be_retired(actor: Actor) -> None:
    actor.child.log.refusal, actor.child.process = "no such model", None
    actor.wait_for("refused")
    actor.node.retire(60.0)
    actor.wait_for("left")


def test_an_accident_of_the_thread_is_said(tmp_path: Path) -> None:
    actor = Actor(tmp_path)
    actor.supervise = None  # type: ignore[method-assign, assignment]
    actor.node._supervise = actor.supervise
    actor.node.start()
    assert actor.wait_for("refused")["reason"].startswith("TypeError")


def test_the_default_model_is_fetched_first(tmp_path: Path) -> None:
    actor = Actor(tmp_path, settings={"MESHNET_MODEL": ""})
    actor.node.start()
    wait_until(lambda: actor.made, 5)
    assert actor.child.spec.command[-2:] == ["fetch_model", DEFAULT_MODEL]
    assert actor.node.look()["reason"] == f"fetching {DEFAULT_MODEL}"
    assert "MESHNET_SECRET" not in actor.child.spec.env
    (tmp_path / "models" / DEFAULT_MODEL).mkdir(parents=True)
    wait_until(lambda: len(actor.made) == 2, 5)
    assert actor.child.spec.name == "node1"
    actor.node.kill()


def test_a_machine_that_came_later_to_a_mesh_on_loopback_is_refused(tmp_path: Path) -> None:
    node = RayNode(Order("node1", {}, "/project", str(tmp_path), only_at="10.0.0.1"), "10.0.0.2")
    node.start()
    wait_until(lambda: node.look()["stand"] == "refused", 5)
    assert "start the mesh anew" in node.look()["reason"]
    node.kill()


def test_free_ports_can_be_bound() -> None:
    assert can_bind("127.0.0.1", free_port("127.0.0.1"))


def test_threads_that_are_named_stay() -> None:
    assert node_environment({}, {"MESHNET_THREADS": "3"}, 8)["MESHNET_THREADS"] == "3"
    assert node_environment({}, {"MESHNET_THREADS": "0"}, 8)["MESHNET_THREADS"] == "8"
