"""The real model and a real mesh of it, for the tests that MESHNET_REAL_MODEL_TESTS=1 turns on.

The model is MESHNET_REAL_MODEL (a hub id or a folder), by default the default model. `make test` turns them on.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nodes.model_files import DEFAULT_MODEL, ModelFiles, find_model
from tests.processes import ROOT

real_model_only = [
    pytest.mark.real_model,
    pytest.mark.skipif(
        os.environ.get("MESHNET_REAL_MODEL_TESTS") != "1", reason="set MESHNET_REAL_MODEL_TESTS=1 (make test does)"
    ),
]


def real_model() -> ModelFiles:
    """The model's files; fails with what to do when they are not here."""
    return find_model(os.environ.get("MESHNET_REAL_MODEL", DEFAULT_MODEL), ROOT / "var")


@dataclass
class RealMesh:
    """What `manage.py mesh --json` printed, and where its var folder is."""

    data: dict[str, Any]
    var_dir: Path
    process: subprocess.Popen[str]
    model: str

    def manage(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A management command in a process of its own, which finds the mesh by its var folder alone."""
        environ = {name: value for name, value in os.environ.items() if not name.startswith("MESHNET_")}
        return subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=ROOT,
            env={**environ, "MESHNET_VAR_DIR": str(self.var_dir)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


@contextlib.contextmanager
def running_mesh(var_dir: Path, *arguments: str, folder: Path | None = None) -> Iterator[RealMesh]:
    """`manage.py mesh --json` as an operator would start it; ended with SIGINT, as Ctrl-C does.

    `folder` is that of another model than the real one.
    """
    name, folder = (folder.name, folder) if folder else (real_model().name, real_model().folder)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MESHNET_")}
    log = var_dir / "mesh.log"
    var_dir.mkdir(parents=True, exist_ok=True)
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "manage.py", "mesh", "--json", "--model", str(folder), *arguments],
            cwd=ROOT,
            env={**environ, "MESHNET_VAR_DIR": str(var_dir)},
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line, f"the mesh did not start:\n{log.read_text()}"
            yield RealMesh(json.loads(line), var_dir, process, name)
        finally:
            process.send_signal(2)
            process.wait(30)
            process.stdout.close()
