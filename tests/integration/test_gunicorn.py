"""The shipped gunicorn configuration with real workers: long streams, one worker, stopping."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from tests import processes
from tests.marks import long
from tests.proxies import proxy_to
from tests.toy_mesh import ToyMesh


@long
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


def test_a_head_that_is_told_to_stop_ends_its_streams_and_leaves_nothing_behind(
    toy_mesh: ToyMesh, tmp_path: Path
) -> None:
    with proxy_to(toy_mesh.nodes[0].port) as proxy:
        head = processes.head(tmp_path / "head", toy_mesh.model, [proxy.url, toy_mesh.nodes[1].url])
        key = processes.prepare_head(head)
        got: list[bytes] = []
        proxy.delay = lambda: threading.Event().wait(0.05)
        with processes.serving(head):
            body = {
                "model": toy_mesh.model.name,
                "messages": [{"role": "user", "content": "hello"}],
                "max_tokens": 440,
                "temperature": 0,
                "stream": True,
            }
            call = (f"{head.url}/v1/chat/completions", "POST", body, {"Authorization": f"Bearer {key}"}, 60)
            reader = threading.Thread(target=lambda: got.append(processes.call(*call)[2]))  # type: ignore[arg-type]
            reader.start()
            processes.wait_until(lambda: len(proxy.steps()) > 5, 20)
            head.process.terminate()
            reader.join(20)
            head.process.join(20)
        events = got[0].decode().strip().split("\n\n")
        assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "cancelled"
        assert "[DONE]" not in got[0].decode()
        processes.wait_until(toy_mesh.is_idle, 5, "the nodes still hold the session")
        row = processes.in_django(
            head, "from generation.models import Generation\nresult = Generation.objects.values().get()\n"
        )
        assert row["status"] == "cancelled"


def test_a_head_that_also_holds_layers_serves_both(toy_mesh: ToyMesh, tmp_path: Path) -> None:
    """Role `all`: layers 0:2 in the head's own process, 2:4 on a node; and the process is a node for other heads."""
    both = processes.head(
        tmp_path / "all", toy_mesh.model, [toy_mesh.nodes[1].url], MESHNET_ROLE="all", MESHNET_LAYERS="0:2"
    )
    both.config = "gunicorn_node.py"
    key = processes.prepare_head(both)
    with processes.serving(both):
        body = {"model": toy_mesh.model.name, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 20}
        status, _, answer = processes.call(
            f"{both.url}/v1/chat/completions", "POST", {**body, "temperature": 0}, {"Authorization": f"Bearer {key}"}
        )
        assert status == 200
        expected = toy_mesh.client.chat.completions.create(**body, temperature=0)  # type: ignore[call-overload]
        assert json.loads(answer)["choices"][0]["message"]["content"] == expected.choices[0].message.content
        stranger = {**processes.secret_header(), "Host": "some-machine:9000"}
        status, _, answer = processes.call(f"{both.url}/status", headers=stranger)
        assert (status, json.loads(answer)["layers"]) == (200, "0:2"), "other heads call a node by any name"
        for path, expected_status in (("/sessions/short", 404), ("/sessions/a/b", 404), ("/forward", 401)):
            status, headers, _ = processes.call(
                f"{both.url}{path}", "DELETE", headers={} if "forward" in path else stranger
            )
            assert (status, headers["Content-Type"]) == (expected_status, "application/json")
        status, headers, _ = processes.call(f"{both.url}/admin/login/", headers={"Host": "some-machine:9000"})
        assert status == 400, "the head's own pages keep their host check"


def test_a_node_that_is_told_to_stop_ends_and_says_so(toy_mesh: ToyMesh, tmp_path: Path) -> None:
    node = processes.node(tmp_path / "node", toy_mesh.model, "0:1")
    with processes.serving(node):
        assert json.loads(processes.call(f"{node.url}/readyz")[2]) == {"status": "ok"}
    assert node.process.exitcode == 0
    assert "Shutting down" in node.log.read_text()
