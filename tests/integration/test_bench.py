"""The benchmark on a toy model: every measure runs, and the report holds what it promises. No number is judged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from meshsite.bench.scale import MEASURES, RATIOS
from tests.processes import ROOT

pytestmark = pytest.mark.skipif(
    os.environ.get("MESHNET_BENCH_TESTS") != "1", reason="set MESHNET_BENCH_TESTS=1 (make test-bench does): a minute"
)
#: The toy's context of 512 tokens has no room for a text at 512 or for its prompt; nobody installs llama.cpp here.
NOT_HERE = {"flatness_512_vs_32", "ttft512_mesh2_vs_generate", "mesh2_vs_llama_cpp"}


def test_every_measure_runs_and_is_reported(toy_folder: Callable[[str], Path], tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MESHNET_")}
    result = subprocess.run(
        [sys.executable, "manage.py", "bench", "--quick", "--rounds", "1", "--tokens", "3"],
        cwd=ROOT,
        env={**environment, "MESHNET_VAR_DIR": str(tmp_path), "MESHNET_MODEL": str(toy_folder("llama"))},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    report = json.loads((tmp_path / "bench" / "latest.json").read_text())
    (run,) = report["runs"]
    assert set(run["samples"]) == set(MEASURES), result.stderr
    assert set(RATIOS) <= set(report)
    assert {name for name in RATIOS if report[name] is None} == set(report["reasons"])
    assert NOT_HERE <= set(report["reasons"]) <= NOT_HERE | {"handover_vs_relay_20ms"}
    assert report["versions"]["torch"]
    assert report["machine"]["cores"]
    assert report["dtype"] == "float32"
    assert set(report["threads"]) - {"generate (prompts)"} == {"generate", "transformers_pp", "mesh2", "mesh3"}
    # A hop's bytes do not depend on the machine: 64 values of 4 bytes each way, and the headers.
    assert run["samples"]["wire"]["payload_bytes"] == 512
    assert 0 < report["wire_bytes_over_payload"] <= 1500
    # Relayed over three nodes a token waits for three round trips of 20 ms.
    assert min(run["samples"]["handover"]["relayed by the head"]) >= 60
    others = [path for path in (tmp_path / "bench").glob("*.json") if path.name != "latest.json"]
    assert [json.loads(path.read_text()) for path in others] == [report]
    assert "tokens/s, one session" in result.stdout
    assert "mesh2_vs_generate" in result.stdout
