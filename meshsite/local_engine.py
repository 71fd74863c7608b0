"""Nodes as processes of this machine, behind the interface of meshsite/engine.py.

1. `add` gives each node a port and a child of the supervisor (supervisor.py), which starts it again when it ends.
2. `retire` takes a node out: one that serves is told to drain (leaving_node.py) and is dismissed once its sessions
   have ended, or at the latest after LEAVE_SECONDS; its own draining then moves what is left. One that does not serve
   is dismissed at once.
3. Children are forked by `step` alone, in the thread that the engine belongs to: the kernel ends them with it.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshsite.engine import EngineRefused, NodeSpec, NodeState, Say, Stand, Wait
from meshsite.leaving_node import LeavingNode
from meshsite.local_mesh import HIGHEST_PORT, HOST, why_taken
from meshsite.mesh_processes import child_environment, gunicorn
from meshsite.supervisor import Child, ChildSpec, Supervisor
from nodes.machines import Machine
from nodes.memory import available_bytes

#: How long the sessions of a retired node may go on there.
LEAVE_SECONDS = 120.0
#: Where nothing says how much memory there is.
UNKNOWN_MEMORY = 4 * 1024**3
_MEASURED_BYTES = 64 * 1024**2

MakeChild = Callable[[NodeSpec, int], ChildSpec]


@dataclass
class _Node:
    spec: NodeSpec
    url: str
    leaving: LeavingNode | None = None


class LocalEngine:
    """A NodeEngine of this machine. `ports` are those of the nodes that the mesh starts with, by name; later nodes take
    free ones from `next_port` on. `make_child` is what a node is as a process; `leave` how one drains.
    """

    def __init__(
        self,
        log_dir: Path,
        say: Say,
        *,
        make_child: MakeChild,
        leave: Callable[[str], LeavingNode],
        ports: Mapping[str, int],
        next_port: int,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._make_child = make_child
        self._leave = leave
        self._ports = dict(ports)
        self._next_port = next_port
        self._nodes: dict[str, _Node] = {}
        self._supervisor = supervisor or Supervisor([], log_dir, say)

    def machines(self) -> list[Machine]:
        """This one. Reading is measured by a copy, of which half is reading."""
        memory = available_bytes()
        return [Machine(socket.gethostname(), memory or UNKNOWN_MEMORY, 2 * _copied_per_second(), float(_cores()))]

    def add(self, specs: Sequence[NodeSpec]) -> None:
        for spec in specs:
            port = self._ports.pop(spec.name, 0) or self._free_port()
            child = self._make_child(spec, port)
            try:
                self._supervisor.add(child)
            except OSError as error:
                raise EngineRefused(f"The log of {spec.name} cannot be written: {error}.") from None
            self._nodes[spec.name] = _Node(spec, child.url)

    def retire(self, names: Sequence[str]) -> None:
        children = self._children()
        for name in names:
            node = self._nodes[name]
            if node.leaving is not None:
                continue
            node.leaving = self._leave(node.url)
            if children[name].ready_at is None:
                node.leaving.end()
                self._supervisor.dismiss(name)

    def step(self) -> None:
        self._supervisor.step()
        children = self._children()
        for name, node in list(self._nodes.items()):
            if name not in children:
                if node.leaving is not None:
                    node.leaving.end()
                del self._nodes[name]
            # One that does not serve is not asked: its port may be another node's soon, which must not drain.
            elif node.leaving is not None and (children[name].ready_at is None or node.leaving.step()):
                node.leaving.end()
                self._supervisor.dismiss(name)

    def states(self) -> list[NodeState]:
        children = self._children()
        return [
            NodeState(
                name, node.spec.replica, node.spec.stage, node.spec.layers, _stand(node, children[name]),
                node.url, HOST, children[name].refusal,
            )
            for name, node in self._nodes.items()
            if name in children
        ]  # fmt: skip

    def stop(self, wait: Wait) -> None:
        for node in self._nodes.values():
            if node.leaving is not None:
                node.leaving.end()
        try:
            self._supervisor.stop(wait)
        finally:
            self._supervisor.close()

    def pids(self) -> dict[str, int]:
        """Of the processes that run now, by name."""
        return self._supervisor.pids()

    def _children(self) -> dict[str, Child]:
        return {child.spec.name: child for child in self._supervisor.children}

    def _free_port(self) -> int:
        taken = {node.url for node in self._nodes.values()}
        for port in self._candidates():
            if _url(port) not in taken and why_taken(port) is None:
                return port
        raise EngineRefused(f"No port of {HOST} from {self._next_port} on is free for another node.")

    def _candidates(self) -> Iterator[int]:
        return iter(range(self._next_port, HIGHEST_PORT + 1))


def local_child(environ: Mapping[str, str], var_dir: Path, base_dir: Path) -> MakeChild:
    """A node's process: gunicorn, in the user's environment."""
    outside = {name: value for name, value in environ.items() if not name.startswith("MESHNET_")}

    def make(spec: NodeSpec, port: int) -> ChildSpec:
        own = {
            **spec.settings,
            "MESHNET_VAR_DIR": str(var_dir),
            "MESHNET_BIND": f"{HOST}:{port}",
            "MESHNET_URL": _url(port),
        }
        return ChildSpec(spec.name, gunicorn("node"), child_environment(outside, own), _url(port), base_dir)

    return make


def _url(port: int) -> str:
    return f"http://{HOST}:{port}"


def _stand(node: _Node, child: Child) -> Stand:
    if node.leaving is not None:
        return Stand.LEAVING
    if child.ready_at is not None:
        return Stand.READY
    if child.process is not None:
        return Stand.STARTING
    if child.refusal:
        return Stand.REFUSED
    return Stand.WAITING if child.failures else Stand.STARTING


def _copied_per_second() -> float:
    block = bytearray(_MEASURED_BYTES)
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        bytes(block)
        best = min(best, time.perf_counter() - began)
    return _MEASURED_BYTES / best


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
