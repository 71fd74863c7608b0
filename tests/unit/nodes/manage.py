"""`manage.py` in a process of its own, as an operator's shell runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from django.conf import settings

from tests.unit.nodes.fake_node import SECRET, FakeNode


def manage(
    *arguments: str, var_dir: Path, nodes: tuple[FakeNode | str, ...] = (), code: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs the command, or Python `code` with Django set up, against these nodes."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MESHNET_")}
    environment["MESHNET_VAR_DIR"] = str(var_dir)
    if nodes:
        environment["MESHNET_NODES"] = ",".join(node if isinstance(node, str) else node.url for node in nodes)
        environment["MESHNET_SECRET"] = SECRET
    command = [sys.executable, "-c", code] if code else [sys.executable, "manage.py", *arguments]
    return subprocess.run(
        command, cwd=settings.BASE_DIR, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
