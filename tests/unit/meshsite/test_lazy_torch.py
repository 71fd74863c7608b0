"""Commands that do not compute start in a second: they load neither torch nor transformers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = """
import os, sys
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "meshsite.settings")
from django.core.management import execute_from_command_line
try:
    execute_from_command_line(["manage.py", *sys.argv[1:]])
except SystemExit as end:
    print("code", end.code)
print("heavy", *sorted({"torch", "transformers"} & set(sys.modules)))
"""


COMMANDS = {
    "check": ["check"],
    "migrate": ["migrate", "--verbosity=0"],
    "kv_sessions": ["kv_sessions"],
    "kv_evict": ["kv_evict", "--all"],
    "kv_stats": ["kv_stats"],
    "mesh_status": ["mesh_status"],
    "prune_generations": ["prune_generations", "--older-than", "30d"],
    "api_key": ["api_key", "list"],
    "cancel_generation": ["cancel_generation", "1"],
    "mesh": ["mesh", "--shards", "0"],
    "fetch_model": ["fetch_model", "/nowhere"],
    "bench": ["bench", "--only", "nothing"],
    "simulate": ["simulate", "--quick", "--nodes", "5", "--only", "memory"],
}
NEED_A_DATABASE = ("migrate", "prune_generations", "api_key", "cancel_generation")


@pytest.mark.parametrize(
    ("role", "name"),
    [
        (role, name)
        for role in ("head", "node", "all")
        for name in COMMANDS
        if (role, name) not in {("node", name) for name in NEED_A_DATABASE}  # a node has none
    ],
)
def test_no_torch(role: str, name: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MESHNET_")}
    result = subprocess.run(
        [sys.executable, "-c", RUN, *COMMANDS[name]],
        env={
            **environment,
            "MESHNET_ROLE": role,
            "MESHNET_VAR_DIR": str(tmp_path),
            # Nobody listens there: what talks to nodes gets as far as it can without one.
            "MESHNET_NODES": "http://127.0.0.1:9",
            "MESHNET_SECRET": "a secret of enough characters",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.splitlines()[-1] == "heavy", result.stderr
