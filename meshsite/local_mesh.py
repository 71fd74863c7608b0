"""What a mesh of `manage.py mesh` consists of: heads, replicas, layers and ports, on its var folder. Starts nothing.

What its processes are told stands in mesh_processes.py.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nodes.layers import LayerRange, split_evenly
from nodes.mesh_file import FILE_NAME, MeshFile
from nodes.networks import as_address

HOST = "127.0.0.1"
LOCK = "mesh.lock"
#: Each has a copy of its layers in this machine's memory.
MOST_REPLICAS = 16
MOST_HEADS = 16
HIGHEST_PORT = 65535


class MeshRefused(Exception):  # reads as what happened
    """The local mesh cannot be started; the message says what to do about it."""


@dataclass(frozen=True)
class Secrets:
    """Made anew for each start, so that whatever the last start gave out is void."""

    mesh_secret: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    django_key: str = field(default_factory=lambda: secrets.token_urlsafe(48), repr=False)
    admin_password: str = field(default_factory=lambda: secrets.token_urlsafe(12), repr=False)


@dataclass(frozen=True)
class Seat:
    """A node that the mesh starts with: its name, what it is, and its port, which is 0 where an engine finds one."""

    name: str
    replica: int
    stage: int
    layers: LayerRange
    port: int


@dataclass(frozen=True)
class Plan:
    """Heads on `host` and nodes, each stretch of layers held by `replicas` of them. `model` is MESHNET_MODEL's value.

    Nodes stand in layer order, those of a stretch side by side. With `local_nodes` they take ports of this machine,
    after those of the heads.
    """

    model: str
    stretches: tuple[LayerRange, ...]
    port: int
    var_dir: Path
    base_dir: Path
    replicas: int = 1
    heads: int = 1
    local_nodes: bool = True
    host: str = HOST

    @property
    def layers(self) -> tuple[LayerRange, ...]:
        """What each node holds."""
        return tuple(stretch for stretch in self.stretches for _ in range(self.replicas))

    @property
    def head_url(self) -> str:
        """The first head's."""
        return self.head_urls[0]

    @property
    def head_urls(self) -> tuple[str, ...]:
        return tuple(f"http://{self.host}:{self.port + index}" for index in range(self.heads))

    @property
    def seats(self) -> tuple[Seat, ...]:
        """The nodes of the start, in layer order."""
        first = self.port + self.heads
        return tuple(
            Seat(f"node{index + 1}", replica, stage, layers, first + index if self.local_nodes else 0)
            for index, (stage, layers, replica) in enumerate(
                (stage, layers, replica)
                for stage, layers in enumerate(self.stretches, 1)
                for replica in range(1, self.replicas + 1)
            )
        )

    @property
    def node_urls(self) -> tuple[str, ...]:
        """Of nodes on this machine."""
        return tuple(f"http://{HOST}:{seat.port}" for seat in self.seats if seat.port)

    @property
    def ports(self) -> dict[str, int]:
        """The ports of this machine that are taken, by the name of the process."""
        nodes = {seat.name: seat.port for seat in self.seats if seat.port}
        return {**{name: self.port + index for index, name in enumerate(head_names(self))}, **nodes}


class Seating:
    """Gives the nodes of each replica their names, which never come twice."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._first = {
            replica: [seat for seat in plan.seats if seat.replica == replica] for replica in range(1, plan.replicas + 1)
        }
        self._next = len(plan.seats) + 1

    def seats(self, replica: int) -> list[Seat]:
        """Those of the plan the first time; for another replica, or once more, new ones."""
        seats = self._first.pop(replica, [])
        for stage, layers in enumerate(self._plan.stretches if not seats else (), 1):
            seats.append(Seat(f"node{self._next}", replica, stage, layers, 0))
            self._next += 1
        return seats


def make_plan(
    model: str,
    n_layers: int,
    shards: int,
    port: int,
    var_dir: Path,
    base_dir: Path,
    *,
    replicas: int = 1,
    heads: int = 1,
    stretches: Sequence[LayerRange] | None = None,
    local_nodes: bool = True,
    host: str = HOST,
) -> Plan:
    """The layers split evenly in `shards`, or in these `stretches`.

    Raises MeshRefused when there would be a shard without a layer or a node, or a port or host that does not exist.
    """
    address = as_address(host)
    if address is None or address.version != 4 or address.is_unspecified:
        raise MeshRefused(f"--host {host}: name one IPv4 address of this machine, under which nodes reach the heads.")
    if local_nodes and not address.is_loopback:
        raise MeshRefused(f"--host {host}: a mesh whose nodes are processes of this machine keeps to loopback.")
    if stretches is None:
        try:
            stretches = split_evenly(n_layers, shards)
        except ValueError as error:
            raise MeshRefused(f"--shards {shards}: {error}") from None
    if not 1 <= replicas <= MOST_REPLICAS:
        raise MeshRefused(f"--replicas {replicas}: each shard needs 1 to {MOST_REPLICAS} nodes.")
    highest = HIGHEST_PORT - (heads - 1) - (len(stretches) * replicas if local_nodes else 0)
    if not 1 <= port <= highest:
        raise MeshRefused(f"--port {port}: the head's port must lie between 1 and {highest}.")
    return Plan(model, tuple(stretches), port, var_dir, base_dir, replicas, heads, local_nodes, host)


def parse_stretches(text: str, n_layers: int | None) -> list[LayerRange]:
    """`0:10,10:30` as stretches in layer order. Raises MeshRefused unless they hold each layer exactly once.

    `n_layers` is None as long as the model is not known.
    """
    try:
        stretches = [LayerRange.parse(part) for part in text.split(",")]
    except ValueError as error:
        raise MeshRefused(f"--layers {text}: {error} Write stretches such as 0:10,10:30.") from None
    reached = 0
    for stretch in stretches:
        if stretch.start != reached:
            what = "are missing" if stretch.start > reached else "are held twice or stand out of order"
            first, last = sorted((reached, stretch.start))
            raise MeshRefused(f"--layers {text}: the layers {first}:{last} {what}; each must be in one stretch.")
        reached = stretch.end
    if n_layers is not None and reached != n_layers:
        what = (
            f"the layers {reached}:{n_layers} are missing" if reached < n_layers else f"it has no layer {reached - 1}"
        )
        raise MeshRefused(f"--layers {text}: the model has {n_layers} layers, and {what}.")
    return stretches


def head_names(plan: Plan) -> list[str]:
    """`head`, `head2`, …: names of processes, and of their logs."""
    return ["head", *(f"head{index}" for index in range(2, plan.heads + 1))][: plan.heads]


def why_taken(port: int, host: str = HOST) -> OSError | None:
    """Why a port of this machine cannot be had, or None when it can."""
    with socket.socket() as probe:
        # As gunicorn binds: connections of the last mesh that are only waiting to be forgotten do not matter.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error
    return None


def check_ports(plan: Plan) -> None:
    """Raises MeshRefused that names each port that cannot be had. Between this and the start a port may still go."""
    problems = []
    for name, port in plan.ports.items():
        error = why_taken(port, plan.host)
        if error is not None:
            taken = error.errno == errno.EADDRINUSE
            problems.append(f"{port} for {name}: {'taken by another process' if taken else error.strerror}")
    if problems:
        raise MeshRefused(
            f"These ports of {plan.host} cannot be had: {'; '.join(problems)}. Name another with --port: the head "
            "takes it, the nodes those after it."
        )


@contextlib.contextmanager
def only_mesh(var_dir: Path) -> Iterator[None]:
    """Holds the lock on the var folder; the kernel frees it however the mesh ends. Raises MeshRefused when held.

    While it is held, a `mesh.json` that lies about is one of a mesh that was killed.
    """
    var_dir.mkdir(parents=True, exist_ok=True)
    with (var_dir / LOCK).open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise MeshRefused(
                f"A mesh is running on {var_dir} already (process {lock.read().strip() or 'unknown'}). End it first, "
                "or give this one a folder of its own with MESHNET_VAR_DIR."
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        remove_mesh_file(var_dir)
        try:
            yield
        finally:
            remove_mesh_file(var_dir)
            lock.truncate(0)


def remove_mesh_file(var_dir: Path) -> None:
    (var_dir / FILE_NAME).unlink(missing_ok=True)


def mesh_file(plan: Plan, made: Secrets, api_key: str, admin_user: str) -> MeshFile:
    return MeshFile(
        head=plan.head_url,
        nodes=plan.node_urls,
        api_key=api_key,
        mesh_secret=made.mesh_secret,
        admin_user=admin_user,
        admin_password=made.admin_password,
        heads=plan.head_urls,
    )
