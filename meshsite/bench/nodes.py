"""Node processes of the benchmark's own, on free ports of loopback, without a head: the loop runs in the command."""

from __future__ import annotations

import contextlib
import os
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from meshsite import local_mesh
from meshsite.bench import machine
from meshsite.bench.contenders import ContenderFailed
from meshsite.local_engine import local_child
from meshsite.local_mesh import MeshRefused, Plan, Secrets
from meshsite.mesh_processes import node_specs
from meshsite.supervisor import StartFailed, Supervisor

#: As many sessions at once as any measure has, and a few that are on their way out.
MOST_SESSIONS = 24
#: Where free ports are looked for: below those that the system gives to clients.
PORTS = range(20000, 32000)


@dataclass(frozen=True)
class NodeGroup:
    """Running nodes that hold a whole model together. `threads` is each one's pool."""

    urls: tuple[str, ...]
    secret: str
    threads: int
    layers: tuple[str, ...]


@contextlib.contextmanager
def running(
    model: Path,
    n_layers: int,
    count: int,
    *,
    dtype: str,
    threads: int,
    cores: int,
    var_dir: Path,
    base_dir: Path,
    say: Callable[[str], None],
) -> Iterator[NodeGroup]:
    """Starts the nodes as `manage.py mesh` would, waits until they serve, kills them at the end.

    threads 0 is the share that `manage.py mesh` gives. Raises ContenderFailed.
    """
    secrets = Secrets()
    own = {
        **machine.environment(os.environ),
        "MESHNET_DTYPE": dtype,
        "MESHNET_KV_MAX_SESSIONS": str(MOST_SESSIONS),
        "MESHNET_LOG_LEVEL": "WARNING",
        "MESHNET_THREADS": str(threads),
    }
    name = f"mesh of {count}"
    try:
        plan = _plan(str(model), n_layers, count, var_dir, base_dir)
        make_child = local_child(own, plan.var_dir, plan.base_dir)
        specs = [
            make_child(spec, seat.port)
            for spec, seat in zip(node_specs(plan, secrets, own, plan.seats, cores=cores), plan.seats, strict=True)
        ]
        logs = var_dir / "bench" / "logs" / f"mesh{count}-{threads}"
        logs.mkdir(parents=True, exist_ok=True)
        with Supervisor(specs, logs, lambda text: say(f"{name}: {text}")) as supervisor:
            supervisor.wait_until_ready(_wait)
            yield NodeGroup(
                plan.node_urls,
                secrets.mesh_secret,
                int(specs[0].env["MESHNET_THREADS"]),
                tuple(str(layers) for layers in plan.layers),
            )
    except (MeshRefused, StartFailed) as error:
        raise ContenderFailed(f"The {name} did not start: {error}") from None


def _plan(model: str, n_layers: int, count: int, var_dir: Path, base_dir: Path) -> Plan:
    """A plan on ports that are free now. Between this and the start one may still go; then the start fails."""
    refused = MeshRefused("There are no free ports.")
    for _ in range(20):
        port = random.randrange(PORTS.start, PORTS.stop)  # noqa: S311  # a port, not a secret
        plan = local_mesh.make_plan(model, n_layers, count, port, var_dir, base_dir, heads=0)
        try:
            local_mesh.check_ports(plan)
        except MeshRefused as error:
            refused = error
            continue
        return plan
    raise refused


def _wait(seconds: float) -> bool:
    """Nobody asks the benchmark to stop but by an exception."""
    return threading.Event().wait(seconds)
