"""What a mesh says of itself: what is being started, and where everything is once it serves."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

from meshsite.local_mesh import Plan
from nodes.mesh_file import MeshFile

QUESTION = "What is the capital of France?"


def starting_line(plan: Plan, model: str) -> str:
    stretches = ", ".join(str(layers) for layers in plan.stretches)
    each = "" if plan.replicas == 1 else f", {plan.replicas} to each stretch,"
    heads = "a head" if plan.heads == 1 else f"{plan.heads} heads"
    return f"Starting {heads} and {len(plan.layers)} nodes{each} with the layers {stretches} of {model} …"


def announcement(plan: Plan, mesh: MeshFile, name: str) -> str:
    """Addresses, key and password, and a command to try; `name` is what clients call the model."""
    login = f"user {mesh.admin_user}   password {mesh.admin_password}"
    if not mesh.admin_user:
        login = "users by manage.py createsuperuser"
    lines = [
        "",
        "The mesh is ready.",
        "",
        f"  Chat     {mesh.head}/v1/chat/completions   (OpenAI-style; model {name})",
        f"  API key  {mesh.api_key}",
        f"  Admin    {mesh.head}/admin/   {login}",
        *([] if plan.replicas == 1 else [f"  Nodes    {nodes_line(plan)}"]),
        *([] if plan.heads == 1 else [f"  Heads    {', '.join(plan.head_urls)}"]),
        f"  Logs     {plan.var_dir / 'logs'}",
        "",
        "Try it:",
        "",
        curl_line(mesh, name),
        "",
        "Ctrl-C ends the mesh.",
        "",
    ]
    return "\n".join(lines)


def nodes_line(plan: Plan) -> str:
    """Which nodes stand in for each other: `0:15 node1, node2; 15:30 node3, node4`."""
    nodes = [seat.name for seat in plan.seats]
    groups = [nodes[start : start + plan.replicas] for start in range(0, len(nodes), plan.replicas)]
    return "; ".join(f"{layers} {', '.join(group)}" for layers, group in zip(plan.stretches, groups, strict=True))


def curl_line(mesh: MeshFile, model: str) -> str:
    """A command that can be pasted into a shell and answers."""
    body = {"model": model, "temperature": 0, "messages": [{"role": "user", "content": QUESTION}]}
    words: Sequence[str] = (
        "curl", f"{mesh.head}/v1/chat/completions",
        "-H", f"Authorization: Bearer {mesh.api_key}",
        "-H", "Content-Type: application/json",
        "-d", json.dumps(body),
    )  # fmt: skip
    return shlex.join(words)
