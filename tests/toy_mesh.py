"""A toy mesh of real gunicorn processes: a head and two nodes on loopback. The fixture `toy_mesh` is one for all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai

from tests import processes
from tests.processes import Served, wait_until
from tests.proxies import Proxy, proxy_to


@dataclass
class ToyMesh:
    """`urls` are the nodes as the head knows them: the first stands behind `proxy`, which can hold steps back."""

    head: Served
    nodes: list[Served]
    api_key: str
    model: Path
    client: openai.OpenAI
    proxy: Proxy
    urls: list[str]

    def sessions(self) -> list[dict[str, Any]]:
        """`/sessions` of every node, in layer order."""
        return [get_json(f"{node.url}/sessions") for node in self.nodes]

    def is_idle(self) -> bool:
        return not any(listing["sessions"] for listing in self.sessions())

    def rows(self) -> list[dict[str, Any]]:
        """The generations, newest first, once none is running any more: a row ends just after its answer."""
        code = "from generation.models import Generation\nresult = list(Generation.objects.values())\n"

        def ended() -> list[dict[str, Any]] | None:
            rows: list[dict[str, Any]] = processes.in_django(self.head, code)
            return None if any(row["status"] == "running" for row in rows) else rows

        rows: list[dict[str, Any]] = wait_until(ended, 10, "generations are still running")
        return rows


def get_json(url: str) -> dict[str, Any]:
    status, _, body = processes.call(url, headers=processes.secret_header())
    assert status == 200, body
    value: dict[str, Any] = json.loads(body)
    return value


@contextmanager
def running_toy_mesh(model: Path, folder: Path) -> Iterator[ToyMesh]:
    nodes = [
        processes.node(folder / "one", model, "0:2"),
        processes.node(folder / "two", model, "2:4"),
    ]
    with processes.serving(*nodes), proxy_to(nodes[0].port) as proxy:
        urls = [proxy.url, nodes[1].url]
        head = processes.head(folder / "head", model, urls)
        key = processes.prepare_head(head)
        with processes.serving(head), openai.OpenAI(base_url=f"{head.url}/v1", api_key=key) as client:
            yield ToyMesh(head, nodes, key, model, client, proxy, urls)
