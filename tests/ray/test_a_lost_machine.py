"""A machine of the cluster loses power in mid-stream. The order matters for time only: one replica, scaled to two."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.integration.test_admin import Browser
from tests.processes import wait_until
from tests.ray.machines import RayMachines
from tests.ray.mesh import RayMesh, Stream, machine_of, ray_only, wait_whole

pytestmark = ray_only

#: The one with Ray's own head process and the launcher's connection: Ray itself ends with it.
RAY_HEAD = "127.0.0.2"
TOKENS = 60
PROMPTS = ["Tell me a story about a dog who wants to cross the sea.", "Describe a small town by a river."]
CHATS = 8
#: All layers are covered again within so many seconds after a machine's end.
COVERED_AGAIN_SECONDS = 60.0


@pytest.fixture(scope="module")
def undisturbed(mesh: RayMesh) -> list[str]:
    return [mesh.ask(prompt, TOKENS) for prompt in PROMPTS]


def victim(mesh: RayMesh) -> str:
    """A machine, not Ray's own, that holds a session of a stream that is under way."""
    return str(
        wait_until(
            lambda: next(
                (machine_of(url) for url in mesh.nodes() if machine_of(url) != RAY_HEAD and mesh.sessions(url)),
                None,
            ),
            30,
            "no stream runs over a machine that may be killed",
        )
    )


def under_way(*streams: Stream) -> None:
    wait_until(lambda: all(stream.pieces >= 8 for stream in streams), 60, "the streams do not come on")
    assert not any(stream.is_whole for stream in streams)


def note(record: pytest.FixtureRequest, name: str, seconds: float) -> None:
    record.node.user_properties.append((name, f"{seconds:.1f} s"))


def test_without_replicas_the_stream_waits_and_ends_with_the_same_text_and_nothing_moves_back(
    mesh: RayMesh, whole_machines: RayMachines, undisturbed: list[str], request: pytest.FixtureRequest
) -> None:
    note(request, "mesh up", mesh.seconds_up)
    stream = mesh.stream(PROMPTS[0], TOKENS)
    under_way(stream)
    lost = victim(mesh)
    gone = {url for url in mesh.nodes() if machine_of(url) == lost}
    whole_machines.kill(lost)
    killed_at = time.monotonic()
    wait_whole(mesh, 1, COVERED_AGAIN_SECONDS)
    note(request, "covered again", time.monotonic() - killed_at)
    assert stream.finish(120) == undisturbed[0]
    assert stream.comments > 0, "keep-alive comments while it waited"
    note(request, "longest pause", stream.longest_pause)
    assert not gone & {row["url"] for row in mesh.rows()}
    whole_machines.start(lost)
    assert_nothing_moves(mesh)


def assert_nothing_moves(mesh: RayMesh) -> None:
    """Until each node has announced itself once more: meanwhile the launcher has looked at the machines several times,
    and a node more would have announced itself, too.
    """
    before = {row["url"]: row["announced_at"] for row in mesh.rows()}
    nodes = mesh.nodes()
    assert set(before) == set(nodes)
    wait_until(
        lambda: all(row["announced_at"] > before.get(row["url"], "") for row in mesh.rows()),
        60,
        "the nodes announce themselves no more",
    )
    assert (mesh.nodes(), {row["url"] for row in mesh.rows()}) == (nodes, set(before))


class Load:
    """Chats that go on and on; each text is compared with what came before the change."""

    def __init__(self, mesh: RayMesh, chats: int) -> None:
        self.mesh = mesh
        self.alone = [mesh.ask(f"{chat}. Name a river.", 6) for chat in range(chats)]
        self.counts = [0] * chats
        self.stopping = threading.Event()

    def keep_asking(self, chat: int) -> None:
        while not self.stopping.is_set():
            assert self.mesh.ask(f"{chat}. Name a river.", 6) == self.alone[chat]
            self.counts[chat] += 1


@pytest.fixture
def load(mesh: RayMesh) -> Iterator[Load]:
    load = Load(mesh, CHATS)
    with ThreadPoolExecutor(CHATS) as pool:
        asking = [pool.submit(load.keep_asking, chat) for chat in range(CHATS)]
        wait_until(lambda: all(load.counts) or any(one.done() for one in asking), 60)
        try:
            yield load
            counted = list(load.counts)
            wait_until(
                lambda: (
                    all(a < b for a, b in zip(counted, load.counts, strict=True)) or any(one.done() for one in asking)
                ),
                60,
            )
        finally:
            load.stopping.set()
        for one in asking:
            one.result(60)


def scale(mesh: RayMesh, replicas: int) -> None:
    done = mesh.manage("mesh_scale", "--replicas", str(replicas), "--timeout", "150", "--json")
    assert done.returncode == 0, f"{done.stderr}\n{mesh.log.read_text()}"
    assert json.loads(done.stdout)["serving"] == replicas
    wait_whole(mesh, replicas, 30)


def test_replicas_come_and_go_under_load_and_no_chat_notices(mesh: RayMesh, load: Load) -> None:
    scale(mesh, 2)
    scale(mesh, 1)


def test_with_two_replicas_both_streams_go_on_and_all_layers_are_covered_twice_again(
    mesh: RayMesh, whole_machines: RayMachines, undisturbed: list[str], request: pytest.FixtureRequest
) -> None:
    scale(mesh, 2)
    stages = {row["url"]: row["start_layer"] for row in mesh.rows()}
    for start in set(stages.values()):
        copies = [machine_of(url) for url, first in stages.items() if first == start]
        assert len(set(copies)) == 2, f"copies of one stage lie on one machine: {stages}"
    streams = [mesh.stream(prompt, TOKENS) for prompt in PROMPTS]
    under_way(*streams)
    lost = victim(mesh)
    gone = {url for url in mesh.nodes() if machine_of(url) == lost}
    whole_machines.kill(lost)
    killed_at = time.monotonic()
    wait_whole(mesh, 2, COVERED_AGAIN_SECONDS)
    note(request, "covered twice again", time.monotonic() - killed_at)
    assert [stream.finish(120) for stream in streams] == undisturbed
    note(request, "longest pause", max(stream.longest_pause for stream in streams))
    rows = {row["url"] for row in mesh.rows()}
    assert not gone & rows
    overview = see_overview(mesh)
    assert {node["url"] for node in overview["nodes"]} == rows
    assert {node["state"] for node in overview["nodes"]} == {"ready"}, "no ghosts"
    assert "4 of 4 nodes ready" in overview["summary"]


def see_overview(mesh: RayMesh) -> dict[str, object]:
    """The admin's overview as its page's data, once it has looked at the nodes anew."""
    browser = Browser(mesh.head)
    browser.submit(
        "/admin/login/?next=/admin/",
        browser.get("/admin/login/"),
        username=mesh.data["admin"]["user"],
        password=mesh.data["admin"]["password"],
    )

    def look() -> dict[str, object] | None:
        data: dict[str, object] = json.loads(browser.get("/admin/nodes/mesh/data.json"))
        return data if "4 of 4 nodes ready" in str(data["summary"]) else None

    seen: dict[str, object] = wait_until(look, 15, browser.get("/admin/nodes/mesh/data.json"))
    return seen
