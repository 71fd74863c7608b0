"""Cancelling running generations over real processes: by the command, with one head worker and with several."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import openai
import pytest

from tests import processes
from tests.integration.test_chat import MESSAGES, chat
from tests.marks import long
from tests.processes import ROOT, Served, wait_until
from tests.toy_mesh import ToyMesh

ANSWER = 440


def cancel(head: Served, session: str) -> subprocess.CompletedProcess[str]:
    """`manage.py cancel_generation` in a shell of its own, on the head's database."""
    environ = {"PATH": "/usr/bin:/bin", "MESHNET_VAR_DIR": str(head.folder)}
    command = [sys.executable, "manage.py", "cancel_generation", session]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60, check=False)


def running(head: Served) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = processes.in_django(
        head,
        "from generation.models import Generation\n"
        "result = list(Generation.objects.filter(status='running').values())\n",
    )
    return rows


def how_many(head: Served) -> int:
    return int(
        processes.in_django(head, "from generation.models import Generation\nresult = Generation.objects.count()\n")
    )


def row_of(head: Served, session: str) -> dict[str, Any]:
    row: dict[str, Any] = processes.in_django(
        head,
        f"from generation.models import Generation\nresult = Generation.objects.values().get(session_id={session!r})\n",
    )
    return row


def only_session(mesh: ToyMesh) -> str:
    (session,) = {entry["id"] for listing in mesh.sessions() for entry in listing["sessions"]}
    return str(session)


def test_a_stream_ends_with_an_error_that_says_so_and_the_nodes_are_free(toy_mesh: ToyMesh) -> None:
    stream = chat(toy_mesh, ANSWER, stream=True)
    text = [next(stream).choices[0].delta.content or "" for _ in range(5)]
    with toy_mesh.proxy.slowed(0.05):  # the whole answer would take 22 s
        session = only_session(toy_mesh)
        done = cancel(toy_mesh.head, session)
        asked_at = time.monotonic()
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == f"Generation {session} was told to end.\n"
        with pytest.raises(openai.APIError) as ended:
            text += [chunk.choices[0].delta.content or "" for chunk in stream]
        assert time.monotonic() - asked_at < 2
    assert ended.value.code == "cancelled"
    assert "".join(text)
    wait_until(toy_mesh.is_idle, 5, "the nodes still hold the session of a cancelled generation")
    (row,) = [row for row in toy_mesh.rows() if row["session_id"] == session]
    assert (row["status"], row["cancel_requested"], row["error"], row["finish_reason"]) == ("cancelled", True, "", "")
    assert 0 < row["completion_tokens"] < ANSWER
    assert row["finished_at"] is not None and row["timeline"] and row["hops"]
    again = cancel(toy_mesh.head, session)
    assert again.returncode == 1
    assert "is not running; it is cancelled" in again.stderr


def test_a_whole_answer_ends_as_503_and_is_not_asked_for_again(toy_mesh: ToyMesh) -> None:
    failures: list[openai.APIStatusError] = []

    def ask() -> None:
        try:
            chat(toy_mesh, ANSWER)  # with the client's own retries
        except openai.APIStatusError as error:
            failures.append(error)

    before = how_many(toy_mesh.head)
    client = threading.Thread(target=ask)
    with toy_mesh.proxy.slowed(0.05):
        client.start()
        wait_until(lambda: not toy_mesh.is_idle(), 10)
        cancelled = cancel(toy_mesh.head, only_session(toy_mesh))
        assert cancelled.returncode == 0, cancelled.stderr
        client.join(20)
    (error,) = failures
    assert (error.status_code, error.code) == (503, "cancelled")
    assert error.response.headers["x-should-retry"] == "false"
    assert how_many(toy_mesh.head) == before + 1, "the client has asked again"


@long
def test_with_several_workers_the_one_that_runs_it_sees_the_flag(toy_mesh: ToyMesh, tmp_path: Path) -> None:
    head = processes.head(
        tmp_path / "head", toy_mesh.model, toy_mesh.urls, GUNICORN_CMD_ARGS="--workers 3", MESHNET_MAX_ANSWERS="4"
    )
    key = processes.prepare_head(head)
    ends: list[str] = []

    def ask() -> None:
        with openai.OpenAI(base_url=f"{head.url}/v1", api_key=key, max_retries=10) as client:
            stream = client.chat.completions.create(
                model=toy_mesh.model.name, messages=MESSAGES, max_tokens=300, temperature=0, stream=True
            )
            try:
                for _ in stream:
                    pass
                ends.append("done")
            except openai.APIError as error:
                ends.append(str(error.code))

    with processes.serving(head):
        clients = [threading.Thread(target=ask) for _ in range(6)]
        with toy_mesh.proxy.holding():
            for client in clients:
                client.start()
            rows = wait_until(lambda: len(found := running(head)) == 6 and found, 20)
        assert len({row["owner"] for row in rows}) > 1, "all in one worker: nothing to be seen here"
        chosen = {row["session_id"] for row in rows[:3]}
        with toy_mesh.proxy.slowed(0.04):
            done = processes.in_django(
                head,
                "from generation.cancel import request_cancel\nfrom generation.models import Generation\n"
                f"result = len(request_cancel(Generation.objects.filter(session_id__in={chosen!r})))\n",
            )
            assert done == 3
            wait_until(lambda: len(ends) >= 3, 10)
        for client in clients:
            client.join(60)
        assert sorted(ends) == ["cancelled"] * 3 + ["done"] * 3
        wait_until(lambda: not running(head), 10)
        assert {session: row_of(head, session)["status"] for session in chosen} == dict.fromkeys(chosen, "cancelled")


def test_one_whose_worker_was_killed_is_interrupted_and_not_cancelled(toy_mesh: ToyMesh, tmp_path: Path) -> None:
    head = processes.head(tmp_path / "head", toy_mesh.model, toy_mesh.urls)
    key = processes.prepare_head(head)

    def ask() -> None:
        body = {"model": toy_mesh.model.name, "messages": MESSAGES, "max_tokens": ANSWER, "stream": True}
        with pytest.raises(OSError):
            processes.call(f"{head.url}/v1/chat/completions", "POST", body, {"Authorization": f"Bearer {key}"}, 60)

    client = threading.Thread(target=ask)
    with processes.serving(head), toy_mesh.proxy.holding():
        client.start()
        (row,) = wait_until(lambda: running(head), 20)
        head.kill()
    client.join(20)
    for node in toy_mesh.nodes:  # nobody is left to release it
        processes.call(f"{node.url}/sessions/evict", "POST", {"all": True}, processes.secret_header())
    session = row["session_id"]
    assert cancel(head, session).returncode == 0, "nothing tells a dead owner from a slow one at once"
    processes.in_django(
        head,
        "from datetime import timedelta\nfrom django.utils import timezone\n"
        "from generation.models import HeadWorker\n"
        "HeadWorker.objects.update(beat_at=timezone.now() - timedelta(seconds=31))\n",
    )
    successor = processes.head(tmp_path / "head", toy_mesh.model, toy_mesh.urls)
    with processes.serving(successor):
        ended = wait_until(lambda: (found := row_of(successor, session))["status"] != "running" and found, 10)
    assert (ended["status"], ended["cancel_requested"]) == ("interrupted", True)
