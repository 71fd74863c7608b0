"""nginx before heads, from Debian's binary and deploy/nginx/meshnet.conf: as a user without rights, in a folder of its
own.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from meshsite.parent_death import follow_parent
from tests.processes import ROOT, free_port, wait_until

EXAMPLE = ROOT / "deploy" / "nginx" / "meshnet.conf"
BINARY = "/usr/sbin/nginx"


def configuration(port: int, heads: Sequence[int], **values: str) -> str:
    """The example with these ports, and other values for the directives that are named."""
    text = EXAMPLE.read_text().replace("listen 127.0.0.1:8080;", f"listen 127.0.0.1:{port};")
    servers = iter(heads)
    text, count = re.subn(r"server 127\.0\.0\.1:\d+", lambda _: f"server 127.0.0.1:{next(servers)}", text)
    assert (count, f":{port};" in text) == (len(heads), True), "the example is another one than the tests know"
    for name, value in values.items():
        text, count = re.subn(rf"\b{name} [^;]+;", f"{name} {value};", text)
        assert count == 1, name
    return text


@contextlib.contextmanager
def running_nginx(heads: Sequence[int], **values: str) -> Iterator[str]:
    """Its URL. It ends with this process too, however that ends."""
    # Not below pytest's folder: that is root's alone.
    folder = Path(tempfile.mkdtemp(prefix="meshnet-nginx-"))
    identity: dict[str, Any] = {}
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        identity = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    port = free_port()
    (folder / "meshnet.conf").write_text(configuration(port, heads, **values))
    (folder / "meshnet.conf").chmod(0o644)  # whatever this process's umask is
    with (folder / "nginx.log").open("wb") as log:
        process = subprocess.Popen(
            [BINARY, "-p", str(folder), "-c", str(folder / "meshnet.conf"), "-g", "daemon off;"],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            process_group=0,
            preexec_fn=follow_parent(os.getpid(), signal.SIGTERM),  # calls prctl and nothing else
            **identity,
        )

    def listens() -> bool:
        assert process.poll() is None, f"nginx ended with {process.returncode}:\n{(folder / 'nginx.log').read_text()}"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return True
        return False

    try:
        wait_until(listens, 20, "nginx does not listen")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)
        shutil.rmtree(folder)
