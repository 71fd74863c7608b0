"""Shared by the tests of the supervisor and of `manage.py mesh`: cheap children and waiting for their ends."""

from __future__ import annotations

import os
import select
import socket
import sys
from pathlib import Path

from meshsite.supervisor import ChildSpec

FAKE_CHILD = Path(__file__).with_name("fake_child.py")


def free_ports(count: int) -> int:
    """The first of `count` free ports in a row."""
    for first in range(20000 + os.getpid() % 10000, 60000, count):
        sockets = [socket.socket() for _ in range(count)]
        try:
            for offset, probe in enumerate(sockets):
                probe.bind(("127.0.0.1", first + offset))
            return first
        except OSError:
            continue
        finally:
            for probe in sockets:
                probe.close()
    raise AssertionError("There are no free ports.")


def fake_spec(name: str, port: int, **env: str) -> ChildSpec:
    return ChildSpec(
        name,
        [sys.executable, str(FAKE_CHILD)],
        {**os.environ, "FAKE_PORT": str(port), **env},
        f"http://127.0.0.1:{port}",
        FAKE_CHILD.parent,
    )


def wait_for_end(pid: int, seconds: float = 20.0) -> bool:
    """Whether a process that may be nobody's child has ended within so many seconds."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], seconds)[0])
    finally:
        os.close(descriptor)
