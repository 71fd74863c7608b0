"""Which engine keeps the nodes of a mesh running, by its name."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec

from meshsite.engine import EngineRefused, NodeEngine, Say
from meshsite.leaving_node import LeavingNode
from meshsite.local_engine import LEAVE_SECONDS, LocalEngine, local_child
from meshsite.local_mesh import Plan, Secrets

NAMES = ("local", "ray")

#: Plan, secrets, environment and `say` to an engine. Raises EngineRefused.
MakeEngine = Callable[[Plan, Secrets, Mapping[str, str], Say], NodeEngine]


def local_engine(plan: Plan, made: Secrets, environ: Mapping[str, str], say: Say) -> NodeEngine:
    from nodes.registry import connect

    return LocalEngine(
        plan.var_dir / "logs",
        say,
        make_child=local_child(environ, plan.var_dir, plan.base_dir),
        leave=lambda url: LeavingNode(lambda: connect(url, made.mesh_secret), LEAVE_SECONDS),
        ports={seat.name: seat.port for seat in plan.seats},
        next_port=max(plan.ports.values()) + 1,
    )


def check(name: str, address: str, environ: Mapping[str, str]) -> None:
    """Raises EngineRefused where the engine's library is missing, or the address is none, or nobody answers there."""
    if address and name != "ray":
        raise EngineRefused(f"--address {address} is for --engine ray: name both, or leave --address out.")
    if name == "ray" and find_spec("ray") is None:
        raise EngineRefused(
            "The engine ray needs the library ray: .venv/bin/pip install -r requirements-ray.txt. Without it, leave "
            "--engine out: the nodes are processes of this machine then."
        )
    address = address or environ.get("RAY_ADDRESS", "")
    if name == "ray" and address:
        from meshsite.ray_cluster import check_address

        check_address(address)


def ray_engine(plan: Plan, made: Secrets, environ: Mapping[str, str], say: Say, *, address: str = "") -> NodeEngine:
    """Raises EngineRefused where the cluster cannot be reached, or nodes and heads could not reach each other."""
    from django.conf import settings

    from meshsite.ray_start import start_ray_engine

    return start_ray_engine(
        address,
        folder=plan.base_dir,
        var_dir=plan.var_dir,
        head_host=plan.host,
        networks=settings.MESHNET_NODE_NETWORKS,
        plain_http=settings.MESHNET_PLAIN_HTTP,
        environ=environ,
        say=say,
    )


def cores() -> int:
    """Cores that this process may use; a container is often given a few of many."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
