"""A Ray of one machine, for one mesh: `python -m meshsite.ray_host` starts it, prints its address, and ends it in order
when standard input ends, which it does with the launcher, however that ends.

The launcher does not start Ray itself: killed, it would take Ray's own processes with it at once, whose agents then try
for a minute to report that to nobody.
"""

from __future__ import annotations

import logging
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
#: Processors that it offers at least: nodes share this machine's, as those of the local engine do.
LEAST_CPUS = 64
#: Actors pass a few lines around; Ray would take 30 % of the memory for objects.
OBJECT_STORE_BYTES = 80_000_000
END_SECONDS = 20.0
#: It takes 5 s where the machine has nothing else to do.
START_SECONDS = 120.0
COMMAND = (sys.executable, "-m", "meshsite.ray_host")
#: Environment of a Ray of one's own: nobody is told of its use, and whoever connects needs the token.
OWN_RAY = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token"}


class RayHost:
    """The process, as the launcher knows it, with the launcher's environment.

    Raises OSError with what Ray said when it could not be started.
    """

    def __init__(self, command: Sequence[str] = COMMAND, start_seconds: float = START_SECONDS) -> None:
        with TemporaryFile("w+") as errors:
            self._process = subprocess.Popen(  # noqa: S603  # a module of our own
                command,
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                process_group=0,  # a Ctrl-C at the terminal reaches the launcher alone
            )
            self.address = self._first_line(start_seconds)
            if not self.address:
                self.end()
                errors.seek(0)
                raise OSError((errors.read().strip().splitlines() or ["it said nothing"])[-1])

    def _first_line(self, seconds: float) -> str:
        """Empty when it ended without one. Raises OSError when none has come in time."""
        stdout = self._process.stdout
        assert stdout is not None  # noqa: S101  # for the type checker
        if not select.select([stdout], [], [], seconds)[0]:
            self.end()
            raise OSError(f"it did not say its address within {seconds:.0f} s")
        return stdout.readline().strip()  # it writes the line at once

    def end(self) -> None:
        """Returns when nothing is left of Ray."""
        try:
            self._process.communicate(timeout=END_SECONDS)  # closes its standard input
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


def main() -> None:
    import ray

    options: dict[str, Any] = {
        "address": "local",
        "num_cpus": max(LEAST_CPUS, os.cpu_count() or 1),
        "object_store_memory": OBJECT_STORE_BYTES,
        "include_dashboard": False,  # a page from which anybody on this machine could start programs
        "log_to_driver": False,
        "logging_level": logging.ERROR,
    }
    with ray.init(**options) as context:
        sys.stdout.write(f"{context.address_info['address']}\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
