"""A PostgreSQL cluster for one test run, from Debian's binaries: in a folder of its own, gone when the run ends.

No cluster of the machine is touched or needed. `initdb` refuses root: started by root, the cluster is the user
`postgres`'s. It listens on a socket in its folder only, which nobody else may enter.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg import sql

from meshsite.parent_death import follow_parent
from tests.processes import wait_until

REQUIRED = "MESHNET_POSTGRESQL_TESTS"
#: Of the throw-away cluster: what is written need not outlive the machine.
OPTIONS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "listen_addresses": "",
    "max_connections": "200",
    "shared_buffers": "32MB",
    "autovacuum": "off",  # its tables are gone before it would pay, and it would count as somebody's work
    "log_lock_waits": "on",
}


@dataclass
class Cluster:
    """A cluster in its folder. Its superuser is `meshnet`, who needs no password."""

    binaries: Path
    folder: Path
    #: As whom its programs run, as `subprocess` wants to be told.
    identity: dict[str, Any]
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns once it answers."""
        options = {**OPTIONS, "unix_socket_directories": str(self.folder)}
        settings = [f"--{name}={value}" for name, value in options.items()]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [str(self.binaries / "postgres"), "-D", str(self.folder / "data"), *settings],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,  # a Ctrl-C at the terminal reaches pytest, which ends the cluster itself
                preexec_fn=follow_parent(os.getpid(), signal.SIGQUIT),  # calls prctl and nothing else
                **self.identity,
            )
        wait_until(self._answers, 30, "the PostgreSQL cluster does not answer")

    def stop(self) -> None:
        """At once, as when its machine loses power; what was written is there at the next start all the same."""
        if self.process is not None:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait(30)

    def url(self, database: str) -> str:
        """The value of DATABASE_URL for a database of this cluster."""
        return f"postgres://meshnet@{quote(str(self.folder), safe='')}/{database}"

    def connect(self, database: str) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(host=str(self.folder), user="meshnet", dbname=database, autocommit=True)

    def new_database(self, name: str) -> str:
        """Makes an empty database; returns its URL."""
        with self.connect("postgres") as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.url(name)

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def _log(self) -> Path:
        return self.folder / "postgres.log"

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"postgres ended with {self.process.returncode}:\n{self.log}"
        try:
            self.connect("postgres").close()
        except psycopg.OperationalError:
            return False
        return True


def find_binaries() -> Path | None:
    """The folder of `initdb` and `postgres` of the newest version that Debian's package has put here."""
    found = [
        path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb") if (path.parent / "postgres").exists()
    ]
    return max(found, key=lambda folder: int(folder.parent.name), default=None)


@contextlib.contextmanager
def running_cluster(binaries: Path) -> Iterator[Cluster]:
    """A fresh cluster. It ends with this process too, however that ends."""
    # Not below pytest's folder: that is root's alone, and a socket's path may have 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="meshnet-pg-"))
    identity: dict[str, Any] = {}
    if os.geteuid() == 0:
        owner = pwd.getpwnam("postgres")
        os.chown(folder, owner.pw_uid, owner.pw_gid)
        identity = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}
    cluster = Cluster(binaries, folder, identity)
    try:
        made = subprocess.run(
            [
                *(binaries / "initdb", "--pgdata", folder / "data", "--username", "meshnet", "--auth", "trust"),
                *("--encoding", "UTF8", "--locale", "C.UTF-8", "--no-sync"),
            ],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            **identity,
        )
        assert made.returncode == 0, f"initdb failed:\n{made.stdout}{made.stderr}"
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder)
