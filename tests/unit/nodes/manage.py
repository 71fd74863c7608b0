"""`manage.py` in a process of its own, as an operator's shell runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.conf import settings

from tests.unit.nodes.fake_node import SECRET, FakeNode

Nodes = tuple[FakeNode | str, ...]


def manage(
    *arguments: str, var_dir: Path, nodes: Nodes = (), code: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs the command, or Python `code` with Django set up, against these nodes."""
    command = [sys.executable, "-c", code] if code else [sys.executable, "manage.py", *arguments]
    return subprocess.run(
        command,
        cwd=settings.BASE_DIR,
        env=_environment(var_dir, nodes),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@contextmanager
def started(*arguments: str, var_dir: Path, nodes: Nodes = ()) -> Iterator[subprocess.Popen[str]]:
    """The command, running; killed at the end if it still does. Its output is not buffered."""
    with subprocess.Popen(
        [sys.executable, "-u", "manage.py", *arguments],
        cwd=settings.BASE_DIR,
        env=_environment(var_dir, nodes),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _environment(var_dir: Path, nodes: Nodes) -> dict[str, str]:
    # The database is that of the var folder too, whichever one the tests run on.
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("MESHNET_") and name != "DATABASE_URL"
    }
    environment["MESHNET_VAR_DIR"] = str(var_dir)
    if nodes:
        environment["MESHNET_NODES"] = ",".join(node if isinstance(node, str) else node.url for node in nodes)
        environment["MESHNET_SECRET"] = SECRET
    return environment
