from __future__ import annotations

from pathlib import Path

import pytest

from nodes.memory import available_bytes

MIB = 1024**2


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, "proc/meminfo", "MemTotal:       8388608 kB\nMemAvailable:    4194304 kB\nBuffers: 1 kB\n")
    return tmp_path


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_it_is_what_the_kernel_holds_to_be_available(root: Path) -> None:
    assert available_bytes(root) == 4096 * MIB


def test_a_control_group_allows_less(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/a/b\n")
    write(root, "sys/fs/cgroup/a/memory.max", f"{2048 * MIB}\n")
    write(root, "sys/fs/cgroup/a/memory.current", f"{1024 * MIB}\n")
    write(root, "sys/fs/cgroup/a/memory.stat", f"anon 5\ninactive_file {24 * MIB}\n")
    write(root, "sys/fs/cgroup/a/b/memory.max", "max\n")
    write(root, "sys/fs/cgroup/a/b/memory.current", "7\n")
    assert available_bytes(root) == 1048 * MIB


def test_in_a_container_the_group_is_the_root_that_is_seen(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/docker/of-the-host\n")
    write(root, "sys/fs/cgroup/memory.max", f"{512 * MIB}\n")
    write(root, "sys/fs/cgroup/memory.current", f"{612 * MIB}\n")
    assert available_bytes(root) == 0


def test_the_older_control_groups_are_read_too(root: Path) -> None:
    write(root, "proc/self/cgroup", "5:cpu,memory:/x\n4:freezer:/\n")
    write(root, "sys/fs/cgroup/memory/x/memory.limit_in_bytes", f"{512 * MIB}\n")
    write(root, "sys/fs/cgroup/memory/x/memory.usage_in_bytes", f"{12 * MIB}\n")
    assert available_bytes(root) == 500 * MIB


def test_a_generous_group_changes_nothing(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/\n")
    write(root, "sys/fs/cgroup/memory.max", f"{1 << 62}\n")
    write(root, "sys/fs/cgroup/memory.current", "0\n")
    assert available_bytes(root) == 4096 * MIB


def test_where_nobody_says_it_is_not_known(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) is None
