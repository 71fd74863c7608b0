"""Replicas come and go under load, by orders over the control socket: nobody who chats notices.

A head and nodes as everywhere else, forked from a process that has torch loaded; the launcher's loop runs here.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from django.core.management import call_command

from meshsite.control_socket import ControlSocket
from meshsite.engine import NodeSpec
from meshsite.leaving_node import LeavingNode
from meshsite.local_engine import LocalEngine, local_child
from meshsite.replicas import Progress, Replicas
from meshsite.scaler import Scaler
from meshsite.supervisor import ChildSpec, Supervisor
from nodes.client import HttpNodeClient
from nodes.layers import LayerRange
from tests import processes
from tests.processes import SECRET, Served, free_port, wait_until
from tests.steady_chats import SteadyChats


class Forked:
    """What the supervisor needs of a process, of one that the tests' forkserver has made."""

    def __init__(self, served: Served) -> None:
        self._process = served.process
        self.pid: int = served.process.pid

    @property
    def returncode(self) -> int | None:
        code: int | None = self._process.exitcode
        return code

    def poll(self) -> int | None:
        return self.returncode

    def wait(self) -> int | None:
        self._process.join()
        return self.returncode

    def send_signal(self, sig: int) -> None:
        self._process.terminate()


def fork(spec: ChildSpec, output: IO[bytes]) -> Any:
    served = Served(dict(spec.env), "gunicorn_node.py", Path(spec.env["MESHNET_VAR_DIR"]))
    return Forked(served.start())


class Mesh:
    """One head, and replicas of two stages under a scaler."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder, self.model = folder, model
        self.said: list[str] = []
        self.head = processes.head(folder / "head", model, [])
        self.engine = LocalEngine(
            folder / "logs",
            self.said.append,
            make_child=local_child({}, folder, folder),
            leave=lambda url: LeavingNode(lambda: HttpNodeClient(url, SECRET), 60),
            ports={},
            next_port=free_port(),
            supervisor=Supervisor([], folder / "logs", self.said.append, launch=fork),
        )
        self.replicas = Replicas(self.engine, self._specs, self.said.append, wanted=1, most=4)
        self.scaler = Scaler(self.replicas, self.said.append)

    def _specs(self, replica: int) -> list[NodeSpec]:
        settings = {
            "MESHNET_ROLE": "node",
            "MESHNET_SECRET": SECRET,
            "MESHNET_MODEL": str(self.model),
            "MESHNET_THREADS": "1",
            "MESHNET_HEADS": self.head.url,
        }
        return [
            NodeSpec(
                f"node{2 * replica + stage - 2}", replica, stage, LayerRange.parse(layers),
                {**settings, "MESHNET_LAYERS": layers},
            )
            for stage, layers in ((1, "0:2"), (2, "2:4"))
        ]  # fmt: skip

    @contextlib.contextmanager
    def running(self) -> Iterator[str]:
        """The mesh with one replica; an API key."""
        key = processes.prepare_head(self.head)
        self.head.start()
        try:
            with ControlSocket(self.folder, self.scaler.answer):
                self.step_until(lambda: self.replicas.last_order.progress is Progress.REACHED)
                self.head.wait_ready()
                yield key
        finally:
            self.head.stop()
            self.engine.stop(lambda seconds: False)

    def step_until(self, condition: Callable[[], bool]) -> None:
        def look() -> bool:
            self.scaler.step()
            return condition()

        wait_until(look, 60, f"the replicas stay as they are: {self.replicas.states}")

    def scale(self, replicas: int) -> dict[str, Any]:
        """The command in a thread of its own, and the launcher's loop in this one, which is the one that forks."""
        out, err = io.StringIO(), io.StringIO()
        with ThreadPoolExecutor(1) as pool:
            command: Future[Any] = pool.submit(
                call_command, "mesh_scale", "--replicas", str(replicas), "--json", stdout=out, stderr=err
            )
            self.step_until(command.done)
            command.result()
        report: dict[str, Any] = json.loads(out.getvalue())
        return report

    def steps(self, url: str) -> int:
        client = HttpNodeClient(url, SECRET)
        hits: int = client.sessions(timeout=5)["stats"]["hits"]
        client.close()
        return hits


def test_from_one_replica_to_two_and_back_under_load_no_chat_fails_and_no_text_changes(
    toy_folder: Callable[[str], Path], tmp_path: Path, settings: Any
) -> None:
    settings.MESHNET_VAR_DIR = tmp_path
    mesh = Mesh(tmp_path, toy_folder("llama"))
    with mesh.running() as key:
        chats = SteadyChats(mesh.head.url, key, mesh.model.name)
        with chats.running():
            nodes = mesh.scale(2)["nodes"]
            assert [(node["replica"], node["layers"], node["state"]) for node in nodes] == [
                (1, "0:2", "ready"), (1, "2:4", "ready"), (2, "0:2", "ready"), (2, "2:4", "ready"),
            ]  # fmt: skip
            mesh.step_until(lambda: all(mesh.steps(node["url"]) > 0 for node in nodes))
            nodes = mesh.scale(1)["nodes"]
            assert [(node["replica"], node["layers"]) for node in nodes] == [(1, "0:2"), (1, "2:4")]
    assert not any("Killing" in line for line in mesh.said)
