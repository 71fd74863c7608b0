"""The shipped gunicorn configuration with real workers: long streams, one worker, stopping."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from tests import processes
from tests.integration.conftest import ToyMesh
from tests.proxies import proxy_to


def test_f01_a_stream_may_last_longer_than_the_workers_timeout(toy_mesh: ToyMesh, tmp_path: Path) -> None:
    """gunicorn's timeout is about a silent main thread, not about requests: 2 s here, a stream of more than 4 s."""
    slow = threading.Event()  # never set: each wait is the delay of a slow node
    with proxy_to(toy_mesh.nodes[0].port) as proxy:
        proxy.delay = lambda: slow.wait(0.012)
        head = processes.head(
            tmp_path / "head",
            toy_mesh.model,
            [proxy.url, toy_mesh.nodes[1].url],
            GUNICORN_CMD_ARGS="--timeout 2",
        )
        key = processes.prepare_head(head)
        with processes.serving(head):
            status, _, body = processes.call(
                f"{head.url}/v1/chat/completions",
                "POST",
                {
                    "model": toy_mesh.model.name,
                    "messages": [{"role": "user", "content": "hello"}],
                    "max_tokens": 380,
                    "temperature": 0,
                    "stream": True,
                },
                {"Authorization": f"Bearer {key}"},
                timeout=60,
            )
    events = body.decode().split("\n\n")
    assert status == 200
    assert events[-2] == "data: [DONE]"
    assert "killed" not in head.log.read_text()
    assert len(proxy.steps()) == 380


def test_a_node_that_is_told_to_stop_ends_and_says_so(toy_mesh: ToyMesh, tmp_path: Path) -> None:
    node = processes.node(tmp_path / "node", toy_mesh.model, "0:1")
    with processes.serving(node):
        assert json.loads(processes.call(f"{node.url}/readyz")[2]) == {"status": "ok"}
    assert node.process.exitcode == 0
    assert "Shutting down" in node.log.read_text()
