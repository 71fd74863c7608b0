"""A head is killed in the middle of an answer (case D08): its nodes forget, and the database does not wait for it."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

from tests import processes
from tests.integration.test_chat import MESSAGES, expected_text
from tests.processes import wait_until
from tests.toy_mesh import ToyMesh

LONG = 60


def test_d08_its_sessions_end_by_their_ttl_and_its_generations_alone_are_interrupted(
    toy_mesh: ToyMesh, toy_reference: Any, tmp_path: Path
) -> None:
    database = f"sqlite:///{toy_mesh.head.folder / 'meshnet.sqlite3'}"
    doomed = processes.head(tmp_path / "doomed", toy_mesh.model, toy_mesh.urls, DATABASE_URL=database)

    def running() -> dict[str, dict[str, Any]]:
        """Generations under way by the head worker that runs them."""
        rows: list[dict[str, Any]] = processes.in_django(
            toy_mesh.head,
            "from generation.models import Generation\n"
            "result = list(Generation.objects.filter(status='running').values())\n",
        )
        return {row["owner"]: row for row in rows}

    def status_of(session: str) -> str:
        return str(
            processes.in_django(
                toy_mesh.head,
                "from generation.models import Generation\n"
                f"result = Generation.objects.get(session_id={session!r}).status\n",
            )
        )

    def ask() -> None:
        body = {"model": toy_mesh.model.name, "messages": MESSAGES, "max_tokens": LONG, "stream": True}
        try:
            processes.call(
                f"{doomed.url}/v1/chat/completions", "POST", body, {"Authorization": f"Bearer {toy_mesh.api_key}"}
            )
        except OSError as error:
            broken.append(error)

    broken: list[OSError] = []
    client = threading.Thread(target=ask)
    with processes.serving(doomed):
        other = toy_mesh.client.chat.completions.create(
            model=toy_mesh.model.name, messages=MESSAGES, max_tokens=LONG, temperature=0, stream=True
        )
        pieces = [next(other).choices[0].delta.content or "" for _ in range(5)]
        with toy_mesh.proxy.holding():
            (owner,) = running()
            client.start()
            rows = wait_until(lambda: len(found := running()) == 2 and found, 20)
            (victim,) = (row for boot_id, row in rows.items() if boot_id != owner)
            wait_until(lambda: victim["session_id"] in {row["id"] for row in toy_mesh.sessions()[0]["sessions"]}, 10)
            doomed.kill()
            client.join(20)
            assert broken, "its client saw the connection break"
            processes.in_django(
                toy_mesh.head,
                "from datetime import timedelta\nfrom django.utils import timezone\n"
                "from generation.models import HeadWorker\n"
                f"HeadWorker.objects.filter(boot_id={victim['owner']!r})"
                ".update(beat_at=timezone.now() - timedelta(seconds=31))\n",
            )
            wait_until(lambda: status_of(victim["session_id"]) == "interrupted", 15)
            assert status_of(rows[owner]["session_id"]) == "running", "that of a head that lives"
        text = "".join(pieces) + "".join(chunk.choices[0].delta.content or "" for chunk in other if chunk.choices)
    assert text == expected_text(toy_mesh, toy_reference("llama"), LONG)
    held = {row["id"] for listing in toy_mesh.sessions() for row in listing["sessions"]}
    assert held == {victim["session_id"]}
    for node in toy_mesh.nodes:
        body = {"ttl_seconds": 1}
        status, _, answer = processes.call(f"{node.url}/limits", "PATCH", body, processes.secret_header())
        assert status == 200, json.loads(answer)
    try:
        wait_until(toy_mesh.is_idle, 10, "the nodes still hold a session of a head that is no more")
        stats = [listing["stats"] for listing in toy_mesh.sessions()]
        assert [one["bytes"] for one in stats] == [0, 0]
        assert sum(one["evictions"]["ttl"] for one in stats) >= 1
    finally:
        for node in toy_mesh.nodes:
            processes.call(f"{node.url}/limits", "PATCH", {"ttl_seconds": 600}, processes.secret_header())
