"""What a local mesh consists of: ports, layers, and the environment of each of its processes. Starts nothing."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from meshsite.supervisor import ChildSpec
from nodes.layers import LayerRange, split_evenly
from nodes.mesh_file import FILE_NAME, MeshFile

HOST = "127.0.0.1"
LOCK = "mesh.lock"
#: Each has a copy of its layers in this machine's memory.
MOST_REPLICAS = 16


class MeshRefused(Exception):  # reads as what happened
    """The local mesh cannot be started; the message says what to do about it."""


@dataclass(frozen=True)
class Secrets:
    """Made anew for each start, so that whatever the last start gave out is void."""

    mesh_secret: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    django_key: str = field(default_factory=lambda: secrets.token_urlsafe(48), repr=False)
    admin_password: str = field(default_factory=lambda: secrets.token_urlsafe(12), repr=False)


@dataclass(frozen=True)
class Plan:
    """One head and its nodes, all on loopback. `model` is what MESHNET_MODEL is set to.

    Each stretch of layers is held by `replicas` nodes. Nodes stand in layer order, those of a stretch side by side.
    """

    model: str
    stretches: tuple[LayerRange, ...]
    port: int
    var_dir: Path
    base_dir: Path
    replicas: int = 1

    @property
    def layers(self) -> tuple[LayerRange, ...]:
        """What each node holds."""
        return tuple(stretch for stretch in self.stretches for _ in range(self.replicas))

    @property
    def head_url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def node_urls(self) -> tuple[str, ...]:
        return tuple(f"http://{HOST}:{port}" for port in self.ports[1:])

    @property
    def ports(self) -> list[int]:
        """The head's, then the nodes'."""
        return [self.port + offset for offset in range(len(self.layers) + 1)]


def make_plan(
    model: str, n_layers: int, shards: int, port: int, var_dir: Path, base_dir: Path, *, replicas: int = 1
) -> Plan:
    """Raises MeshRefused when there would be a shard without a layer or a node, or a port that does not exist."""
    try:
        stretches = tuple(split_evenly(n_layers, shards))
    except ValueError as error:
        raise MeshRefused(f"--shards {shards}: {error}") from None
    if not 1 <= replicas <= MOST_REPLICAS:
        raise MeshRefused(f"--replicas {replicas}: each shard needs 1 to {MOST_REPLICAS} nodes.")
    highest = 65535 - shards * replicas
    if not 1 <= port <= highest:
        raise MeshRefused(f"--port {port}: the head's port must lie between 1 and {highest}.")
    return Plan(model, stretches, port, var_dir, base_dir, replicas)


def check_ports(plan: Plan) -> None:
    """Raises MeshRefused that names each port that cannot be had. Between this and the start a port may still go."""
    problems = []
    for port, name in zip(plan.ports, names(plan), strict=True):
        with socket.socket() as probe:
            # As gunicorn binds: connections of the last mesh that are only waiting to be forgotten do not matter.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError as error:
                taken = error.errno == errno.EADDRINUSE
                problems.append(f"{port} for {name}: {'taken by another process' if taken else error.strerror}")
    if problems:
        raise MeshRefused(
            f"These ports of {HOST} cannot be had: {'; '.join(problems)}. Name another with --port: the head takes it, "
            "the nodes those after it."
        )


def names(plan: Plan) -> list[str]:
    """Names of the processes in the order of `plan.ports`; their logs are called so too."""
    return ["head", *(f"node{index}" for index in range(1, len(plan.layers) + 1))]


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
    )


def child_specs(plan: Plan, made: Secrets, environ: Mapping[str, str], *, cores: int) -> list[ChildSpec]:
    """Nodes first, then the head. `environ` is the user's: its other MESHNET_ options hold for every process."""
    common = {
        "DJANGO_SETTINGS_MODULE": "meshsite.settings",
        "MESHNET_VAR_DIR": str(plan.var_dir),
        "MESHNET_MODEL": plan.model,
        "MESHNET_SECRET": made.mesh_secret,
        # One session runs on one node after the other, many on all at once: an equal share serves both.
        "MESHNET_THREADS": _chosen(environ, "MESHNET_THREADS", "0") or str(max(1, cores // len(plan.layers))),
        "PYTHONUNBUFFERED": "1",
    }
    head, *nodes = zip(names(plan), plan.ports, (plan.head_url, *plan.node_urls), strict=True)
    specs = []
    for (name, port, url), layers in zip(nodes, plan.layers, strict=True):
        own = {
            **common,
            "MESHNET_ROLE": "node",
            "MESHNET_BIND": f"{HOST}:{port}",
            "MESHNET_LAYERS": str(layers),
        }
        specs.append(ChildSpec(name, _gunicorn("node"), _env(environ, own), url, plan.base_dir))
    own = {
        **common,
        "MESHNET_ROLE": "head",
        "MESHNET_BIND": f"{HOST}:{plan.port}",
        "MESHNET_NODES": ",".join(plan.node_urls),
        # Whatever names the user serves, the printed ones must work, and the wait for readiness goes by address.
        "MESHNET_ALLOWED_HOSTS": ",".join(
            dict.fromkeys(["localhost", HOST, *filter(None, environ.get("MESHNET_ALLOWED_HOSTS", "").split(","))])
        ),
        "MESHNET_DJANGO_SECRET_KEY": made.django_key,
    }
    specs.append(
        ChildSpec(head[0], _gunicorn("head"), _env(environ, own), plan.head_url, plan.base_dir, leaves_first=True)
    )
    return specs


def _gunicorn(role: str) -> list[str]:
    return [sys.executable, "-m", "gunicorn", "-c", f"meshsite/gunicorn_{role}.py", "meshsite.wsgi"]


def _chosen(environ: Mapping[str, str], name: str, unset: str) -> str | None:
    value = environ.get(name, "")
    return value if value not in ("", unset) else None


def _env(environ: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """The user's environment with `own` in it, and without what would get in its way."""
    # NAME_FILE wins over NAME (environs), and options for some other gunicorn are not meant for this one.
    unwanted = {f"{name}_FILE" for name in own} | {
        "GUNICORN_CMD_ARGS",
        "MESHNET_LAYERS",
        "MESHNET_NODES",
        "MESHNET_URL",
    }
    # It speaks plain HTTP to itself, and belongs to no other mesh.
    elsewhere = ("MESHNET_SECRET_ALSO", "MESHNET_TLS_", "MESHNET_NODE_CA", "MESHNET_NODE_CERT", "MESHNET_NODE_KEY")
    unwanted |= {name for name in environ if name.startswith((*elsewhere, "MESHNET_HTTPS", "MESHNET_HEADS"))}
    return {**{name: value for name, value in environ.items() if name not in unwanted}, **own}
