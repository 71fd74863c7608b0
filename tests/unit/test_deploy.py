"""What lies in deploy/ for production: settings that exist, units that systemd takes, checks that find nothing."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from meshsite import gunicorn_conf
from meshsite.options import OPTIONS
from tests.certificates import Authority
from tests.processes import ROOT

DEPLOY = ROOT / "deploy"
ROLES = ["head", "node"]
OPTION_NAMES = {option.name for option in OPTIONS}
SETTING = re.compile(r"#?([A-Z_]+)=(.*)")
Unit = dict[str, list[str]]


def example(role: str, *, commented: bool = False) -> dict[str, str]:
    lines = (DEPLOY / f"{role}.env.example").read_text().splitlines()
    found = [match.groups() for line in lines if (match := SETTING.fullmatch(line))]
    assert found
    return {name: value for name, value in found if commented or f"{name}={value}" in lines}


def unit(role: str) -> Unit:
    """Each key of the unit with all its values."""
    keys: Unit = defaultdict(list)
    for line in (DEPLOY / "systemd" / f"meshnet-{role}.service").read_text().splitlines():
        if line and not line.startswith(("#", "[")):
            key, _, value = line.partition("=")
            keys[key].append(value)
    return keys


@pytest.mark.parametrize("role", ROLES)
def test_the_examples_hold_settings_that_exist_and_no_secret(role: str) -> None:
    settings = example(role, commented=True)
    assert set(settings) <= OPTION_NAMES
    assert settings["MESHNET_ROLE"] == role
    assert not {name for name in settings if "SECRET" in name or "TOKEN" in name}


def test_djangos_deployment_checks_find_nothing_in_the_documented_head(tmp_path: Path) -> None:
    environ = {
        **example("head"),
        "MESHNET_NODE_CA": str(Authority(tmp_path / "ca").file),
        "MESHNET_SECRET": "a-mesh-secret-for-this-test-only",
        "MESHNET_DJANGO_SECRET_KEY": "Zk3-9vQmT7xLwR2pB8nYc5hJ1dFgS6aE4uKoXiVt0yMqWz_PbN",
        "MESHNET_VAR_DIR": str(tmp_path),
        "PATH": "/usr/bin:/bin",
    }
    assert check(environ) == (0, "System check identified no issues (2 silenced).\n")
    code, said = check({**environ, "MESHNET_HTTPS": "off"})
    assert code == 1
    assert {"W004", "W008", "W012", "W016"} <= set(re.findall(r"security\.(W\d+)", said))


def check(environ: dict[str, str]) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "manage.py", "check", "--deploy", "--fail-level", "WARNING"],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("role", ROLES)
def test_a_unit_agrees_with_the_project(role: str) -> None:
    keys = unit(role)
    assert keys["EnvironmentFile"] == [f"/etc/meshnet/{role}.env"]
    (start,) = keys["ExecStart"]
    assert start.endswith(f" -c meshsite/gunicorn_{role}.py meshsite.wsgi")
    assert (ROOT / "meshsite" / f"gunicorn_{role}.py").exists()
    credentials = {value.partition(":")[0] for value in keys["LoadCredential"]}
    for setting in keys["Environment"]:
        name, _, value = setting.partition("=")
        assert name.removesuffix("_FILE") in OPTION_NAMES
        if value.startswith("%d/"):
            credentials.remove(value.removeprefix("%d/"))
    assert not credentials, "a credential that nothing reads"


@pytest.mark.parametrize("role", ROLES)
def test_a_unit_starts_again_unless_it_was_refused_and_lets_a_stop_take_its_time(role: str) -> None:
    keys = unit(role)
    assert keys["Restart"] == ["on-failure"]
    assert keys["RestartPreventExitStatus"] == [str(gunicorn_conf.REFUSED)]
    assert keys["KillMode"] == ["mixed"]  # only the master is told: workers get its order
    assert int(keys["TimeoutStopSec"][0]) > gunicorn_conf.GRACEFUL_SECONDS


@pytest.mark.parametrize("role", ROLES)
def test_a_unit_may_write_its_own_folder_only(role: str) -> None:
    keys = unit(role)
    assert (keys["NoNewPrivileges"], keys["ProtectSystem"], keys["ProtectHome"]) == (["yes"], ["strict"], ["yes"])
    assert keys["CapabilityBoundingSet"] == [""]
    assert f"MESHNET_VAR_DIR=/var/lib/{keys['StateDirectory'][0]}" in keys["Environment"]
    assert "ReadWritePaths" not in keys


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here to ask")
@pytest.mark.parametrize("role", ROLES)
def test_systemd_understands_a_unit(role: str, tmp_path: Path) -> None:
    text = (DEPLOY / "systemd" / f"meshnet-{role}.service").read_text()
    here = tmp_path / f"meshnet-{role}.service"
    here.write_text(re.sub(r"/opt/meshnet/\.venv/bin/\w+", sys.executable, text))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(here)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_nginx_waits_as_long_as_an_answer_may_take_and_lets_connections_go_before_a_head_does() -> None:
    text = (DEPLOY / "nginx" / "meshnet.conf").read_text()
    seconds = {name: int(value) for name, value in re.findall(r"^ +(\w+) (\d+)s;", text, re.MULTILINE)}
    longest = {option.name: option.default for option in OPTIONS}["MESHNET_GENERATION_SECONDS"]
    assert seconds["proxy_read_timeout"] > longest
    assert seconds["keepalive_timeout"] < gunicorn_conf.KEEPALIVE_SECONDS
