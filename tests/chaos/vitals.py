"""What processes hold: memory, threads, open files. Read from /proc."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tests.processes import Served

_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Vitals:
    rss: int
    threads: int
    files: int


def vitals(served: Served) -> Vitals:
    """Of the process that serves: gunicorn's one worker. Raises OSError while there is none."""
    master = served.process.pid
    workers = Path(f"/proc/{master}/task/{master}/children").read_text().split()
    if len(workers) != 1:
        raise ProcessLookupError(f"{served.url} has {len(workers)} workers")
    folder = Path("/proc") / workers[0]
    pages = int((folder / "statm").read_text().split()[1])
    return Vitals(pages * _PAGE, len(list((folder / "task").iterdir())), len(list((folder / "fd").iterdir())))
