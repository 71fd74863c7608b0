"""A node as gunicorn runs it: one worker, whatever signals ask for, and an orderly end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.conf import settings

from meshsite.supervisor import is_ready
from tests.unit.meshsite.children import free_ports, wait_for_end


class Master:
    """gunicorn with the node's configuration and a toy model; `until` reads its log."""

    def __init__(self, model: Path, var: Path) -> None:
        port = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        bare = {name: value for name, value in os.environ.items() if not name.startswith("MESHNET_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gunicorn", "-c", "meshsite/gunicorn_node.py", "meshsite.wsgi"],
            cwd=settings.BASE_DIR,
            env={
                **bare,
                "MESHNET_ROLE": "node",
                "MESHNET_SECRET": "a secret of enough characters",
                "MESHNET_BIND": f"127.0.0.1:{port}",
                "MESHNET_MODEL": str(model),
                "MESHNET_VAR_DIR": str(var),
                "MESHNET_THREADS": "1",
            },
            stderr=subprocess.PIPE,
            text=True,
        )

    def until(self, words: str) -> None:
        assert self.process.stderr is not None
        lines = []
        for line in self.process.stderr:
            if words in line:
                return
            lines.append(line)
        raise AssertionError(f"The log ended without {words!r}:\n{''.join(lines)}")

    def workers(self) -> list[int]:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in children.split()]


@pytest.fixture
def master(toy_folder: Callable[[str], Path], tmp_path: Path) -> Iterator[Master]:
    master = Master(toy_folder("llama"), tmp_path)
    try:
        with master.process:
            yield master
    finally:
        master.process.kill()


def test_a_node_keeps_its_one_worker_until_it_is_told_to_end(master: Master) -> None:
    master.until("Ready to serve as node.")
    assert is_ready(master.url)
    [worker] = master.workers()

    master.process.send_signal(signal.SIGTTIN)
    master.until("A node keeps its one worker")
    assert master.workers() == [worker]

    master.process.send_signal(signal.SIGUSR2)
    master.until("USR2 is refused")
    assert is_ready(master.url)

    os.kill(worker, signal.SIGKILL)
    master.until("Ready to serve as node.")
    assert is_ready(master.url)

    [worker] = master.workers()
    master.process.send_signal(signal.SIGTERM)
    assert master.process.wait(timeout=30) == 0
    assert wait_for_end(worker, 0)


def test_a_worker_ends_with_its_master_even_while_it_loads(master: Master) -> None:
    master.until("Booting worker")
    [worker] = master.workers()
    master.process.kill()
    assert wait_for_end(worker)
