"""A Ray cluster of several machines on this one: each has an address of its own on loopback and dies by SIGKILL.

Run as a program it starts the machines, prints where they are as one line of JSON, and ends them when its standard
input ends, which it does with whoever started it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from meshsite.parent_death import follow_parent
from tests.processes import ROOT, wait_until

OBJECT_STORE = 80_000_000
GIB = 2**30


@dataclass
class RayMachines:
    """`raylets` are process ids by the machine's address. `environ` is what connects a program to the cluster."""

    address: str
    session: Path
    raylets: dict[str, int]
    environ: dict[str, str] = field(repr=False)
    commands: IO[str] | None = field(default=None, repr=False)
    answers: IO[str] | None = field(default=None, repr=False)

    def kill(self, address: str) -> None:
        """The machine loses power: nothing on it gets to say a word."""
        import psutil

        raylet = psutil.Process(self.raylets.pop(address))
        lost = [raylet, *raylet.children(recursive=True)]
        for process in lost:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGSTOP)  # nobody starts anybody anew meanwhile
        for process in lost:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def start(self, address: str) -> None:
        """The machine is back, or another one comes, under that address."""
        assert self.commands is not None
        assert self.answers is not None
        self.commands.write(f"{address}\n")
        self.commands.flush()
        self.raylets[address] = int(json.loads(self.answers.readline())["raylet"])

    def pids(self, address: str) -> list[int]:
        """The raylet's process and all below it."""
        import psutil

        raylet = psutil.Process(self.raylets[address])
        return [raylet.pid, *(child.pid for child in raylet.children(recursive=True))]


@contextlib.contextmanager
def ray_machines(count: int, *, cpus: int = 8, memory: int = 8 * GIB) -> Iterator[RayMachines]:
    """`count` machines, 127.0.0.2 the first, and the head process of Ray on the first, which must live."""
    # A socket's path may have 107 characters, and Ray's names are long.
    folder = Path(tempfile.mkdtemp(prefix="mr-", dir="/tmp"))
    token = folder / "token"
    token.write_text("a-token-for-tests-only-of-some-length-0123456789")
    environ = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_USAGE_STATS_ENABLED": "0"}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.ray.machines", str(folder), str(count), str(cpus), str(memory)],
            cwd=ROOT,
            env={**os.environ, **environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            process_group=0,  # a Ctrl-C at the terminal reaches pytest, which ends the machines itself
            preexec_fn=follow_parent(os.getpid(), signal.SIGKILL),  # Ray's own processes follow this one
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, f"Ray did not start:\n{(folder / 'log').read_text()}"
        said = json.loads(line)
        yield RayMachines(
            said["address"], Path(said["session"]), said["raylets"], environ, process.stdin, process.stdout
        )
    finally:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()
        subprocess.run(["rm", "-rf", str(folder)], check=True)


def _serve(folder: str, count: int, cpus: int, memory: int) -> None:
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    nodes: list[Any] = []

    def add(address: str) -> int:
        node = cluster.add_node(
            node_ip_address=address,
            num_cpus=cpus,
            memory=memory,
            object_store_memory=OBJECT_STORE,
            temp_dir=folder,
            include_dashboard=False,
        )
        nodes.append(node)
        return int(node.all_processes["raylet"][0].process.pid)

    raylets = {f"127.0.0.{number}": add(f"127.0.0.{number}") for number in range(2, 2 + count)}
    out = sys.__stdout__
    assert out is not None
    out.write(json.dumps({"address": cluster.address, "session": nodes[0].get_session_dir_path(), "raylets": raylets}))
    out.write("\n")
    out.flush()
    for line in sys.stdin:
        out.write(json.dumps({"raylet": add(line.strip())}) + "\n")
        out.flush()
    for node in reversed(nodes):
        # Ray's agents of a killed raylet linger for a minute.
        node.kill_all_processes(check_alive=False, allow_graceful=True, wait=True)


def left_of(pids: list[int]) -> list[int]:
    """Those of the processes that still run."""
    import psutil

    return [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


def wait_gone(pids: list[int], seconds: float = 20.0) -> None:
    wait_until(lambda: not left_of(pids), seconds, f"still there: {left_of(pids)}")


if __name__ == "__main__":
    _serve(sys.argv[1], *(int(text) for text in sys.argv[2:5]))
