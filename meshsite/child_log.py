"""A child's log file: rotated at the start of a mesh, written by the child, watched for problems."""

from __future__ import annotations

import re
from pathlib import Path

from meshsite.gunicorn_conf import REFUSAL

#: gunicorn's `[ERROR]` and the ` ERROR ` of settings.LOGGING.
_PROBLEM = re.compile(r"\[(ERROR|CRITICAL)\]|^\S+ \S+ (ERROR|CRITICAL) ")
#: What gunicorn writes once more about an end that the supervisor reports itself.
_ECHO = re.compile(r"\[ERROR\] (Worker \(pid:\d+\) exited|Shutting down: |Reason: )")
#: Of a flood of problems this many are shown at a time; the file has them all.
SHOWN_AT_ONCE = 10


class ChildLog:
    """Owned by the supervisor. `output` is the file that the child writes to; one older file is kept as `.old`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            path.replace(path.with_suffix(".log.old"))
        self.output = path.open("ab")
        self._reader = path.open("rb")
        self._rest = b""
        #: What the child gave as its reason not to serve, if `problems` came across one.
        self.refusal: str | None = None

    def close(self) -> None:
        self.output.close()
        self._reader.close()

    def problems(self) -> list[str]:
        """New whole lines of level ERROR and above since the last call."""
        *lines, self._rest = (self._rest + self._reader.read()).split(b"\n")
        found = []
        for raw in lines:
            line = raw.decode(errors="replace")
            if REFUSAL in line:
                self.refusal = line.partition(REFUSAL)[2].rstrip(". ")
            elif _PROBLEM.search(line) and not _ECHO.search(line):
                found.append(line)
        if len(found) > SHOWN_AT_ONCE:
            left = len(found) - SHOWN_AT_ONCE
            found = [*found[:SHOWN_AT_ONCE], f"… and {left} more problems (log: {self.path})"]
        return found
