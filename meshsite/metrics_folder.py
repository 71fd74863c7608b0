"""Where the workers of one head count together: a folder that its gunicorn master makes and ends.

prometheus-client keeps a file per worker and adds them up at a scrape. Counts of workers that ended must stay (else a
counter would go back), those of a former head must not. A folder of its own for each master does both: two heads on
one var folder, and a second master beside the first (USR2), do not mix. Masters that were killed leave theirs behind;
the next one sweeps it, and knows a dead master by the lock that the kernel has freed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
PARENT = "metrics"
LOCK = "lock"


class MetricsFolder:
    """Made by a master before it forks; the workers inherit the variable, and with it the folder.

    The lock is inherited too: a folder is in use as long as the master or one of its workers lives.
    """

    def __init__(self, var_dir: Path) -> None:
        parent = var_dir / PARENT
        parent.mkdir(parents=True, exist_ok=True)
        with (parent / LOCK).open("a") as turn:
            # One master at a time: a folder that is not locked yet must not be taken for a dead one's.
            fcntl.flock(turn, fcntl.LOCK_EX)
            _sweep(parent)
            self.path = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=parent))
            self._lock = (self.path / LOCK).open("a")
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.environ[VARIABLE] = str(self.path)

    def forget_worker(self, pid: int) -> None:
        """A worker has ended: what it had under way is not under way any more, what it counted stays."""
        from prometheus_client.multiprocess import mark_process_dead

        with contextlib.suppress(FileNotFoundError):
            mark_process_dead(pid, str(self.path))

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def _sweep(parent: Path) -> None:
    """Removes the folders of masters that are gone."""
    for folder in parent.iterdir():
        if not folder.is_dir():
            continue
        with (folder / LOCK).open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            shutil.rmtree(folder, ignore_errors=True)
