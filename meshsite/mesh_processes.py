"""What each process of a mesh is told: its command and its environment. Starts nothing."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from meshsite.engine import NodeSpec
from meshsite.local_mesh import HOST, Plan, Seat, Secrets, head_names
from meshsite.supervisor import ChildSpec

#: Options of another mesh, or of a gunicorn of the user's own. A mesh speaks plain HTTP to itself.
_ELSEWHERE = (
    "MESHNET_SECRET_ALSO", "MESHNET_TLS_", "MESHNET_NODE_CA", "MESHNET_NODE_CERT", "MESHNET_NODE_KEY",
    "MESHNET_HTTPS", "MESHNET_HEADS", "MESHNET_LAYERS", "MESHNET_NODES", "MESHNET_URL", "GUNICORN_CMD_ARGS",
)  # fmt: skip
#: What the user has set for models and their hub, beside the options of meshnet: for nodes on other machines too.
_FOR_NODES = ("MESHNET_", "HF_")
#: What is a head's alone, and what an engine says itself.
_NOT_FOR_NODES = ("MESHNET_DJANGO_SECRET_KEY", "MESHNET_CACHE_URL", "MESHNET_BIND", "MESHNET_VAR_DIR")


def head_specs(plan: Plan, made: Secrets, environ: Mapping[str, str]) -> list[ChildSpec]:
    """The heads, all on one database. `environ` is the user's: its other options hold for every process."""
    own = {
        **_common(plan, made),
        "MESHNET_VAR_DIR": str(plan.var_dir),
        "MESHNET_ROLE": "head",
        # Whatever names the user serves, the printed ones must work, and the wait for readiness goes by address.
        "MESHNET_ALLOWED_HOSTS": ",".join(
            dict.fromkeys(
                ["localhost", HOST, plan.host, *filter(None, environ.get("MESHNET_ALLOWED_HOSTS", "").split(","))]
            )
        ),
        "MESHNET_DJANGO_SECRET_KEY": made.django_key,
    }
    return [
        ChildSpec(
            name, gunicorn("head"), child_environment(environ, {**own, "MESHNET_BIND": f"{plan.host}:{port}"}), url,
            plan.base_dir,
        )
        for name, url, port in zip(head_names(plan), plan.head_urls, plan.ports.values(), strict=False)
    ]  # fmt: skip


def node_specs(
    plan: Plan, made: Secrets, environ: Mapping[str, str], seats: Sequence[Seat], *, cores: int
) -> list[NodeSpec]:
    """These nodes, which announce themselves to all heads. `cores` are those that the nodes of the start share."""
    own = {
        **_common(plan, made),
        "MESHNET_ROLE": "node",
        "MESHNET_HEADS": ",".join(plan.head_urls),
        # One session runs on one node after the other, many on all at once: an equal share serves both.
        "MESHNET_THREADS": _chosen(environ, "MESHNET_THREADS", "0") or str(max(1, cores // len(plan.layers))),
    }
    users = {
        name: value
        for name, value in without_other_meshes(environ, own).items()
        if name.startswith(_FOR_NODES) and not name.startswith(_NOT_FOR_NODES)
    }
    return [
        NodeSpec(seat.name, seat.replica, seat.stage, seat.layers, {**users, **own, "MESHNET_LAYERS": str(seat.layers)})
        for seat in seats
    ]


def gunicorn(role: str) -> list[str]:
    return [sys.executable, "-m", "gunicorn", "-c", f"meshsite/gunicorn_{role}.py", "meshsite.wsgi"]


def child_environment(environ: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """The user's environment with `own` in it, and without what would get in its way."""
    return {**without_other_meshes(environ, own), **own}


def without_other_meshes(environ: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    files = {f"{name}_FILE" for name in own}  # NAME_FILE wins over NAME (environs)
    return {name: value for name, value in environ.items() if name not in files and not name.startswith(_ELSEWHERE)}


def _common(plan: Plan, made: Secrets) -> dict[str, str]:
    return {
        "DJANGO_SETTINGS_MODULE": "meshsite.settings",
        "MESHNET_MODEL": plan.model,
        "MESHNET_SECRET": made.mesh_secret,
        "PYTHONUNBUFFERED": "1",
    }


def _chosen(environ: Mapping[str, str], name: str, unset: str) -> str | None:
    value = environ.get(name, "")
    return value if value not in ("", unset) else None
