from __future__ import annotations

import os
import subprocess
import sys

from meshsite.bench import machine
from tests.processes import ROOT


def test_contenders_get_neither_pool_settings_nor_a_mesh_of_the_user() -> None:
    given = {
        "PATH": "/bin",
        "OMP_NUM_THREADS": "1",
        "GOMP_SPINCOUNT": "0",
        "MKL_NUM_THREADS": "1",
        "MESHNET_SECRET": "x",
        "MESHNET_KV_ENABLED": "0",
        "MESHNET_ALLOW_UNTESTED_MODELS": "1",
    }
    assert machine.environment(given) == {"PATH": "/bin", "MESHNET_ALLOW_UNTESTED_MODELS": "1"}


def test_pinning_holds_for_children() -> None:
    core = min(os.sched_getaffinity(0))
    code = (
        "import os, subprocess, sys\n"
        "from meshsite.bench.machine import pin\n"
        f"print(pin([{core}]))\n"
        "sys.stdout.flush()\n"
        "subprocess.run([sys.executable, '-c', 'import os; print(sorted(os.sched_getaffinity(0)))'])\n"
    )
    said = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert said.split("\n")[:2] == [f"[{core}]", f"[{core}]"]


def test_memory_of_a_process() -> None:
    size = machine.resident_bytes(os.getpid())
    assert size is not None
    assert size > 2**20


def test_memory_of_a_process_that_is_gone() -> None:
    process = subprocess.Popen(["true"])
    process.wait()
    assert machine.resident_bytes(process.pid) is None


def test_the_machine_and_the_versions_are_named() -> None:
    about = machine.describe([0, 1])
    assert about["cores"] == [0, 1]
    assert about["cpu"]
    assert about["memory_bytes"] > 2**20
    assert machine.versions()["torch"]
