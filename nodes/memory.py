"""How much memory this machine can give to a new process. Linux; reads files only."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

ROOT = Path("/")


def available_bytes(root: Path = ROOT) -> int | None:
    """What the kernel holds to be available, or less where a control group allows less. None where nobody says."""
    found = [_mem_available(root), *_group_rooms(root)]
    return min((size for size in found if size is not None), default=None)


def _mem_available(root: Path) -> int | None:
    match = re.search(r"^MemAvailable:\s+(\d+) kB$", _read(root / "proc/meminfo"), re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def _group_rooms(root: Path) -> list[int | None]:
    """What is left in each control group that this process is in, up to the root of what it sees."""
    rooms: list[int | None] = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":  # version 2
            names = ("memory.max", "memory.current", "inactive_file")
            base = root / "sys/fs/cgroup"
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            base = root / "sys/fs/cgroup/memory"
        else:
            continue
        # In a container the path may be the host's, of which only the root is to be seen.
        group = PurePosixPath(path.lstrip("/"))
        rooms += [_room(base / parent, *names) for parent in {group, *group.parents}]
    return rooms


def _room(group: Path, limit: str, usage: str, reclaimable: str) -> int | None:
    most, used = _read(group / limit).strip(), _read(group / usage).strip()
    if not most.isdecimal() or not used.isdecimal():
        return None  # "max", or no such file
    # Cached pages of files count as used and are given up on demand.
    cached = re.search(rf"^{reclaimable} (\d+)$", _read(group / "memory.stat"), re.MULTILINE)
    return max(0, int(most) - int(used) + (int(cached[1]) if cached else 0))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
