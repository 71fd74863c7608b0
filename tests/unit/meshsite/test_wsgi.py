"""No way to serve without the secrets, whatever imports the application."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import ROOT, SECRET, free_port

WAYS = {
    "the application itself": ["-c", "import meshsite.wsgi"],
    "runserver": ["manage.py", "runserver", "--noreload", "127.0.0.1:PORT"],
    "gunicorn without a configuration": ["-m", "gunicorn", "-b", "127.0.0.1:PORT", "meshsite.wsgi"],
    "gunicorn for its role": [
        "-m",
        "gunicorn",
        "-c",
        "meshsite/gunicorn_CONFIG.py",
        "-b",
        "127.0.0.1:PORT",
        "meshsite.wsgi",
    ],
}


def refusal(way: str, folder: Path, role: str, **environ: str) -> str:
    config = "head" if role == "head" else "node"
    arguments = [part.replace("PORT", str(free_port())).replace("CONFIG", config) for part in WAYS[way]]
    common = {"MESHNET_VAR_DIR": str(folder), "MESHNET_ROLE": role, "PATH": "/usr/bin:/bin"}
    if way == "runserver" and role != "node":
        migrate(common)
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**common, **environ},
        capture_output=True,
        text=True,
        timeout=60,  # it ends by itself: what serves would be here until then
        check=False,
    )
    assert done.returncode != 0
    return done.stderr


def migrate(environ: dict[str, str]) -> None:
    """runserver looks at the database first."""
    command = [sys.executable, "manage.py", "migrate", "--verbosity", "0"]
    subprocess.run(command, cwd=ROOT, env=environ, timeout=60, check=True)


@pytest.mark.parametrize(
    ("way", "role"), [*((way, "node") for way in WAYS), ("the application itself", "all"), ("runserver", "head")]
)
def test_e02_nothing_is_served_without_a_mesh_secret(tmp_path: Path, way: str, role: str) -> None:
    assert "MESHNET_SECRET must be set" in refusal(way, tmp_path, role)


@pytest.mark.parametrize("way", ["the application itself", "gunicorn for its role"])
def test_no_head_is_served_without_djangos_key(tmp_path: Path, way: str) -> None:
    assert "MESHNET_DJANGO_SECRET_KEY must be set" in refusal(way, tmp_path, "head", MESHNET_SECRET=SECRET)
