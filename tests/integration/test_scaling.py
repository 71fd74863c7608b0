"""`manage.py mesh_scale`: replicas come and go under load, and nobody who chats notices."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

from tests import processes
from tests.processes import wait_until
from tests.real import RealMesh, running_mesh
from tests.unit.meshsite.children import free_ports

CHATS = 8
TOKENS = 120


class Chats:
    """Eight chats at once, one answer after the other, until the end of the context."""

    def __init__(self, mesh: RealMesh) -> None:
        self.mesh = mesh
        self.alone = [self.ask(chat) for chat in range(CHATS)]
        self.counts = [0] * CHATS
        self.stopping = threading.Event()

    def ask(self, chat: int) -> str:
        status, _, body = processes.call(
            f"{self.mesh.data['head']}/v1/chat/completions",
            "POST",
            {
                "model": self.mesh.model, "temperature": 0, "max_tokens": TOKENS,
                "messages": [{"role": "user", "content": f"{chat}. Tell me more of it"}],
            },
            {"Authorization": f"Bearer {self.mesh.data['api_key']}"},
            timeout=60,
        )  # fmt: skip
        assert status == 200, body
        return str(json.loads(body)["choices"][0]["message"]["content"])

    def keep_asking(self, chat: int) -> None:
        while not self.stopping.is_set():
            assert self.ask(chat) == self.alone[chat]
            self.counts[chat] += 1

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        with ThreadPoolExecutor(CHATS) as pool:
            asking = [pool.submit(self.keep_asking, chat) for chat in range(CHATS)]
            try:
                yield
                counted = list(self.counts)
                # Each chat goes on after the last change.
                wait_until(lambda: all(a < b for a, b in zip(counted, self.counts, strict=True)) or _failed(asking), 60)
            finally:
                self.stopping.set()
            for future in asking:
                future.result()


def _failed(futures: list[Any]) -> bool:
    return any(future.done() and future.exception() is not None for future in futures)


def scale(mesh: RealMesh, replicas: int) -> dict[str, Any]:
    done = mesh.manage("mesh_scale", "--replicas", str(replicas), "--json")
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["order"]["progress"] == "reached"
    return report


def steps(mesh: RealMesh, url: str) -> int:
    headers = {"Authorization": f"Bearer {mesh.data['mesh_secret']}"}
    status, _, body = processes.call(f"{url}/sessions", headers=headers)
    assert status == 200, body
    hits: int = json.loads(body)["stats"]["hits"]
    return hits


def rows(mesh: RealMesh) -> list[str]:
    with closing(sqlite3.connect(mesh.var_dir / "meshnet.sqlite3")) as database:
        return [url for (url,) in database.execute("SELECT url FROM nodes_node ORDER BY url")]


def test_from_one_replica_to_two_and_back_under_load_no_chat_fails_and_no_text_changes(
    toy_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    arguments = ("--shards", "1", "--port", str(free_ports(3)))
    with running_mesh(tmp_path / "var", *arguments, folder=toy_folder("llama")) as mesh:
        (first,) = mesh.data["nodes"]
        chats = Chats(mesh)
        with chats.running():
            report = scale(mesh, 2)
            assert [(node["name"], node["replica"], node["state"]) for node in report["nodes"]] == [
                ("node1", 1, "ready"),
                ("node2", 2, "ready"),
            ]
            second = report["nodes"][1]["url"]
            assert json.loads((mesh.var_dir / "mesh.json").read_text())["nodes"] == [first, second]
            wait_until(lambda: steps(mesh, second) > 0, 20, "the new replica is not used")
            report = scale(mesh, 1)
            assert [node["name"] for node in report["nodes"]] == ["node1"]
            assert json.loads((mesh.var_dir / "mesh.json").read_text())["nodes"] == [first]
        wait_until(lambda: rows(mesh) == [first], 20, "the row of the retired node stays")
