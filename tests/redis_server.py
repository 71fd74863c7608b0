"""A Redis for one test run, from Debian's binary: on loopback, in a folder of its own, writes nothing down."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import RedisError

from meshsite.parent_death import follow_parent
from tests.processes import free_port, wait_until

REQUIRED = "MESHNET_POSTGRESQL_TESTS"
PASSWORD = "word-of-the-tests-redis-5tGz"


@dataclass
class Server:
    """A Redis that needs a password, so that a password in a log would be seen."""

    folder: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://:{PASSWORD}@127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Returns once it answers. The second time, after a stop, it has forgotten everything."""
        options = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "requirepass": PASSWORD,
            "save": "",
            "appendonly": "no",
            "dir": str(self.folder),
            "databases": "64",
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        with (self.folder / "redis.log").open("ab") as log:
            self.process = subprocess.Popen(
                ["redis-server", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,  # a Ctrl-C at the terminal reaches pytest, which ends it itself
                preexec_fn=follow_parent(os.getpid(), signal.SIGKILL),  # calls prctl and nothing else
            )
        wait_until(self._answers, 20, "redis-server does not answer")

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(20)
            self.process = None

    def client(self) -> Redis:
        return Redis.from_url(self.url, decode_responses=True)

    def _answers(self) -> bool:
        assert self.process is not None
        log = (self.folder / "redis.log").read_text
        assert self.process.poll() is None, f"redis-server ended with {self.process.returncode}:\n{log()}"
        try:
            with self.client() as client:
                return bool(client.ping())
        except RedisError:
            return False


@contextlib.contextmanager
def running_redis(folder: Path) -> Iterator[Server]:
    server = Server(folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def need(program: str, package: str) -> None:
    """Skips the test where Debian's package is missing; fails where `make test` promised it."""
    if shutil.which(program) is not None or Path("/usr/sbin", program).exists():
        return
    advice = (
        f"{program} is missing. `make test` installs it where it may (Debian, as root); elsewhere: "
        f"apt-get install {package}."
    )
    if os.environ.get(REQUIRED) in ("1", "all"):
        pytest.fail(advice)
    pytest.skip(f"{advice} {REQUIRED}=1 makes this a failure.")
