"""`manage.py mesh --replicas`: nodes of a local mesh stand in for each other."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import openai

from tests import processes
from tests.marks import long
from tests.processes import wait_until
from tests.real import running_mesh
from tests.unit.meshsite.children import free_ports


@long
def test_a_replica_goes_on_with_the_text_of_one_that_is_killed(
    toy_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    arguments = ("--shards", "1", "--replicas", "2", "--port", str(free_ports(3)))
    with (
        running_mesh(tmp_path / "var", *arguments, folder=toy_folder("llama")) as mesh,
        openai.OpenAI(base_url=f"{mesh.data['head']}/v1", api_key=mesh.data["api_key"]) as client,
    ):
        body = {"model": mesh.model, "messages": [{"role": "user", "content": "hello"}], "temperature": 0}
        whole = client.chat.completions.create(**body, max_tokens=440)  # type: ignore[call-overload]
        stream = client.chat.completions.create(**body, max_tokens=440, stream=True)  # type: ignore[call-overload]
        text = next(stream).choices[0].delta.content or ""
        urls = mesh.data["nodes"]
        (busy,) = [
            index for index, url in enumerate(urls)
            if processes.call(f"{url}/sessions", headers=secret(mesh.data["mesh_secret"]))[2].count(b'"id"')
        ]  # fmt: skip
        os.killpg(mesh.data["pids"][f"node{busy + 1}"], signal.SIGKILL)
        text += "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
        assert text == whole.choices[0].message.content

        def is_back() -> bool:
            try:
                return processes.call(f"{urls[busy]}/readyz", timeout=5)[0] == 200
            except OSError:
                return False

        wait_until(is_back, 60, "the killed node was not started again")


def secret(value: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {value}"}
