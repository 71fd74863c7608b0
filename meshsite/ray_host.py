"""A Ray of one machine, for one mesh: `python -m meshsite.ray_host` starts it, prints its address, and ends it in order
when standard input ends, which it does with the launcher, however that ends.

The launcher does not start Ray itself: killed, it would take Ray's own processes with it at once, whose agents then try
for a minute to report that to nobody.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
#: Processors that it offers at least: nodes share this machine's, as those of the local engine do.
LEAST_CPUS = 64
#: Actors pass a few lines around; Ray would take 30 % of the memory for objects.
OBJECT_STORE_BYTES = 80_000_000
END_SECONDS = 20.0
#: Environment of a Ray of one's own: nobody is told of its use, and whoever connects needs the token.
OWN_RAY = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token"}


class RayHost:
    """The process, as the launcher knows it, with the launcher's environment.

    Raises OSError with what Ray said when it could not be started.
    """

    def __init__(self) -> None:
        with TemporaryFile("w+") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "meshsite.ray_host"],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                process_group=0,  # a Ctrl-C at the terminal reaches the launcher alone
            )
            assert self._process.stdout is not None  # noqa: S101  # for the type checker
            self.address = self._process.stdout.readline().strip()
            if not self.address:
                self._process.communicate()
                errors.seek(0)
                raise OSError((errors.read().strip().splitlines() or ["it said nothing"])[-1])

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
