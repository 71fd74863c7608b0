"""`manage.py mesh --engine ray` as an operator runs it, and chats over it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from meshsite.parent_death import follow_parent
from tests.processes import ROOT, call, free_port, wait_until

ray_only = [
    pytest.mark.ray,
    pytest.mark.skipif(
        os.environ.get("MESHNET_RAY_TESTS") != "1", reason="set MESHNET_RAY_TESTS=1 (make test-ray does)"
    ),
]
#: A mesh that measures, loads and proves on two cores, beside others that do.
READY_SECONDS = 120.0


@dataclass
class Stream:
    """A chat that streams in a thread: what came, and how it ended."""

    thread: threading.Thread
    text: str = ""
    pieces: int = 0
    comments: int = 0
    is_whole: bool = False
    problem: str = ""
    arrivals: list[float] = field(default_factory=list)

    @property
    def longest_pause(self) -> float:
        return max(
            (later - earlier for earlier, later in zip(self.arrivals, self.arrivals[1:], strict=False)), default=0
        )

    def finish(self, seconds: float) -> str:
        self.thread.join(seconds)
        assert not self.thread.is_alive(), f"the stream is still under way after {self.pieces} pieces"
        assert (self.problem, self.is_whole) == ("", True), self.problem
        return self.text


@dataclass
class RayMesh:
    """What `mesh --json` printed, and the launcher's process."""

    data: dict[str, Any]
    var_dir: Path
    process: subprocess.Popen[str]
    log: Path
    seconds_up: float

    @property
    def head(self) -> str:
        return str(self.data["head"])

    def states(self) -> list[dict[str, Any]]:
        done = self.manage("mesh_scale", "--json")
        assert done.returncode == 0, done.stderr
        nodes: list[dict[str, Any]] = json.loads(done.stdout)["nodes"]
        return nodes

    def manage(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("MESHNET_")}
        return subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=ROOT,
            env={**environ, "MESHNET_VAR_DIR": str(self.var_dir)},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )

    def rows(self) -> list[dict[str, Any]]:
        """The nodes' rows in the head's database, read beside it."""
        path = f"file:{self.var_dir / 'meshnet.sqlite3'}?mode=ro"
        with closing(sqlite3.connect(path, uri=True, timeout=10)) as database:
            database.row_factory = sqlite3.Row
            return [dict(row) for row in database.execute("SELECT * FROM nodes_node ORDER BY start_layer, url")]

    def nodes(self) -> list[str]:
        """URLs of the nodes that have a place, by `mesh.json`."""
        return list(json.loads((self.var_dir / "mesh.json").read_text())["nodes"])

    def sessions(self, url: str) -> list[str]:
        """Ids of the sessions that a node holds; none when it does not answer."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            headers = {"Authorization": f"Bearer {self.data['mesh_secret']}"}
            status, _, body = call(f"{url}/sessions", headers=headers, timeout=5)
            if status == 200:
                return [row["id"] for row in json.loads(body)["sessions"]]
        return []

    def is_serving(self, url: str) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return call(f"{url}/readyz", timeout=5)[0] == 200
        return False

    def body(self, prompt: str, tokens: int, **more: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": prompt}]
        return {"model": self.data["model"], "messages": messages, "max_tokens": tokens, "temperature": 0, **more}

    def ask(self, prompt: str, tokens: int) -> str:
        headers = {"Authorization": f"Bearer {self.data['api_key']}"}
        status, _, body = call(
            f"{self.head}/v1/chat/completions", "POST", self.body(prompt, tokens), headers, timeout=150
        )
        assert status == 200, body
        return str(json.loads(body)["choices"][0]["message"]["content"])

    def stream(self, prompt: str, tokens: int) -> Stream:
        stream = Stream(threading.Thread())
        stream.thread = threading.Thread(target=self._read, args=(stream, self.body(prompt, tokens, stream=True)))
        stream.thread.start()
        return stream

    def _read(self, stream: Stream, body: dict[str, Any]) -> None:
        parts = urlsplit(self.head)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=150)
        headers = {"Authorization": f"Bearer {self.data['api_key']}", "Content-Type": "application/json"}
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
            response = connection.getresponse()
            if response.status != 200:
                stream.problem = response.read().decode()
                return
            for line in response:
                self._take(stream, line.decode().strip())
        except (OSError, http.client.HTTPException) as error:
            stream.problem = repr(error)
        finally:
            connection.close()

    @staticmethod
    def _take(stream: Stream, line: str) -> None:
        if line.startswith(":"):
            stream.comments += 1
        elif line == "data: [DONE]":
            stream.is_whole = True
        elif line.startswith("data: "):
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                stream.problem = json.dumps(event)
                return
            text = "".join(choice["delta"].get("content") or "" for choice in event["choices"])
            if text:
                stream.text += text
                stream.pieces += 1
                stream.arrivals.append(time.monotonic())


def start_mesh(var_dir: Path, *arguments: str, environ: dict[str, str] | None = None) -> RayMesh:
    """Starts a mesh and waits until it is ready. Whoever calls ends its process."""
    var_dir.mkdir(parents=True, exist_ok=True)
    log = var_dir / "mesh.log"
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MESHNET_", "RAY_"))}
    began = time.monotonic()
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "manage.py", "mesh", "--json", "--engine", "ray", "--port", str(free_port()), *arguments],
            cwd=ROOT,
            env={
                **own, "MESHNET_VAR_DIR": str(var_dir), "MESHNET_ROUTE_WAIT_SECONDS": "120",
                # The machines share this one's cores: two threads of each would wait for each other.
                "MESHNET_KV_MAX_BYTES": str(256 * 2**20), "MESHNET_THREADS": "1", **(environ or {}),
            },
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            process_group=0,
            preexec_fn=follow_parent(os.getpid(), signal.SIGTERM),
        )  # fmt: skip
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        process.wait(30)
        process.stdout.close()
        raise AssertionError(f"the mesh did not start:\n{log.read_text()}")
    return RayMesh(json.loads(line), var_dir, process, log, time.monotonic() - began)


@contextlib.contextmanager
def running_mesh(var_dir: Path, *arguments: str, environ: dict[str, str] | None = None) -> Iterator[RayMesh]:
    mesh = start_mesh(var_dir, *arguments, environ=environ)
    try:
        yield mesh
    finally:
        end(mesh)


def end(mesh: RayMesh) -> None:
    """Ctrl-C, if it still runs."""
    if mesh.process.poll() is None:
        mesh.process.send_signal(signal.SIGINT)
    try:
        mesh.process.wait(40)
    except subprocess.TimeoutExpired:
        mesh.process.kill()
        mesh.process.wait()
        raise
    if mesh.process.stdout is not None:
        mesh.process.stdout.close()


def machine_of(url: str) -> str:
    """A machine's address, which is that of the nodes on it."""
    return urlsplit(url).hostname or ""


def wait_whole(mesh: RayMesh, replicas: int, seconds: float = READY_SECONDS) -> None:
    """Until each of two stages is held by so many nodes that serve, and by no row more."""

    def is_whole() -> bool:
        rows = mesh.rows()
        stages = {(row["start_layer"], row["end_layer"]) for row in rows}
        return (
            len(rows) == 2 * replicas
            and len(stages) == 2
            and {row["url"] for row in rows} == set(mesh.nodes())
            and all(row["announced_at"] and not row["left_at"] for row in rows)
            and all(mesh.is_serving(row["url"]) for row in rows)
        )

    wait_until(is_whole, seconds, "not every layer is covered, or there are rows too many")
