"""A supervisor of one forking child, to be killed by a test. Run as a script: port, pid file, log folder."""

from __future__ import annotations

import sys
from pathlib import Path

from meshsite.stop_signals import StopSignals
from meshsite.supervisor import Supervisor
from tests.unit.meshsite.children import fake_spec


def main() -> None:
    port, pid_file, log_dir = sys.argv[1:]
    spec = fake_spec("child", int(port), FAKE_PID_FILE=pid_file)
    with StopSignals() as stop, Supervisor([spec], Path(log_dir), lambda line: None) as supervisor:
        supervisor.wait_until_ready(stop.wait)
        process = supervisor.children[0].process
        sys.stdout.write(f"{process.pid if process else 0}\n")
        sys.stdout.flush()
        while not stop.wait(0.1):
            supervisor.step()
        supervisor.stop(stop.wait)


if __name__ == "__main__":
    main()
