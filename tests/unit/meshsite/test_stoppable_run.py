from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from meshsite.stop_signals import Stopped
from meshsite.stoppable_run import run_stoppable
from tests.conftest import Clock
from tests.processes import wait_until

#: Writes its process id and that of a child, and then waits for ever.
FOR_EVER = (
    "import os, subprocess, sys, time; child = subprocess.Popen(['sleep', '1000']); "
    "open('pids.part', 'w').write(f'{os.getpid()} {child.pid}'); os.rename('pids.part', 'pids'); time.sleep(1000)"
)


def pids(folder: Path) -> list[int]:
    return [int(word) for word in (folder / "pids").read_text().split()]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def run(folder: Path, code: str, **options: object) -> subprocess.CompletedProcess[str]:
    chosen = {"wait": lambda seconds: False, "timeout": 60, **options}
    return run_stoppable([sys.executable, "-c", code], cwd=folder, env=os.environ, **chosen)  # type: ignore[arg-type]


def test_what_the_command_wrote_and_how_it_ended(tmp_path: Path) -> None:
    code = "import sys; print(repr(sys.stdin.read()) + 'a' * 200_000); print('no', file=sys.stderr); sys.exit(3)"
    done = run(tmp_path, code)
    assert (done.returncode, done.stdout, done.stderr) == (3, "''" + "a" * 200_000 + "\n", "no\n")


def test_a_stop_ends_it_with_all_that_it_started(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        run(tmp_path, FOR_EVER, wait=lambda seconds: (tmp_path / "pids").exists())
    wait_until(lambda: not any(is_alive(pid) for pid in pids(tmp_path)), 5)


def test_so_does_a_time_that_has_passed(tmp_path: Path, clock: Clock) -> None:
    def wait(seconds: float) -> bool:
        if (tmp_path / "pids").exists():
            clock.advance(60)
        return False

    with pytest.raises(subprocess.TimeoutExpired):
        run(tmp_path, FOR_EVER, wait=wait, clock=clock)
    wait_until(lambda: not any(is_alive(pid) for pid in pids(tmp_path)), 5)


def test_a_ctrl_c_at_the_terminal_does_not_reach_it(tmp_path: Path) -> None:
    done = run(tmp_path, "import os; print(os.getpgid(0) == os.getpid())")
    assert done.stdout == "True\n"


def test_it_does_not_outlive_who_asked(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from meshsite.stoppable_run import run_stoppable; "
        f"run_stoppable([sys.executable, '-c', {FOR_EVER!r}], cwd=Path({str(tmp_path)!r}), env=os.environ, "
        "timeout=60, wait=lambda seconds: False)"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as asking:
        wait_until(lambda: (tmp_path / "pids").exists(), 30)
        asking.kill()
    command, child = pids(tmp_path)
    wait_until(lambda: not is_alive(command), 5)
    os.kill(child, 9)  # what a command starts is its own affair
