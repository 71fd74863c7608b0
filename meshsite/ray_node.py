"""Inside an actor: one node process and the thread that keeps it running.

1. The thread forks the node, so that the kernel ends the node when this process ends, however it does: it lives as
   long as the process, which the threads on which Ray runs an actor's methods need not.
2. It takes a free port of the machine's address. When somebody else has the port at a restart, it takes another one.
3. The default model is fetched when it is missing; others are found, fetched or refused by the node itself.
4. A supervisor (meshsite/supervisor.py) starts the node again with back-off. A node that refused is not started again;
   one that never answered is, every 30 s and for ever: what fails on one machine today may be there tomorrow.
5. Retired, the node is told to drain and ended once it holds no session.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from meshsite.engine import Stand
from meshsite.leaving_node import LeavingNode
from meshsite.ray_actor import Order
from meshsite.supervisor import Child, ChildSpec, Supervisor
from nodes.client import HttpNodeClient
from nodes.networks import as_address, make_url

#: What Ray's own workers are started with, and what belongs to some other mesh: not for the node.
_NOT_PASSED_ON = ("RAY_", "MESHNET_", "DATABASE_URL", "GUNICORN_CMD_ARGS", "OMP_NUM_THREADS")
LOOK_SECONDS = 0.2
AGAIN_SECONDS = 30.0
PORT_TAKEN_SECONDS = 1.0
#: Lines for the launcher that it has not fetched yet; the log has them all.
KEPT_LINES = 50
LEFT = "left"


@dataclass(frozen=True)
class Seen:
    stand: str
    reason: str = ""
    url: str = ""


class RayNode:
    """`look`, `retire`, `stop` and `kill` may be called from any thread; the rest happens on the node's own."""

    def __init__(
        self,
        order: Order,
        address: str,
        *,
        supervise: Callable[..., Any] = Supervisor,
        find_port: Callable[[str], int] | None = None,
        leave: Callable[[str, str, float], LeavingNode] | None = None,
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._order = order
        self._machine_address = address
        self._address = "127.0.0.1" if order.only_at and address == order.only_at else address
        self._supervise = supervise
        self._find_port = find_port or free_port
        self._leave = leave or leave_over_http
        self._environ = environ
        self._clock = clock
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._seen = Seen(Stand.STARTING)
        self._wake = threading.Event()
        self._stopping = self._hurry = False
        self._patience: float | None = None  # of one that is retired
        self._leaving: LeavingNode | None = None
        self._thread = threading.Thread(target=self._run, name="meshnet-node", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def look(self) -> dict[str, Any]:
        lines = []
        while self._lines:
            lines.append(self._lines.popleft())
        seen = self._seen
        return {"stand": str(seen.stand), "reason": seen.reason, "url": seen.url, "lines": lines}

    def retire(self, patience: float) -> None:
        if self._patience is None:
            self._patience = patience
            self._wake.set()

    def stop(self) -> None:
        self._stopping = True
        self._wake.set()

    def kill(self) -> None:
        """Returns when nothing is left of the node."""
        self._hurry = self._stopping = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._keep()
            self._seen = Seen(LEFT)
        except Exception as error:  # nobody else would hear of it
            self._seen = Seen(Stand.REFUSED, f"{type(error).__name__}: {error}")

    def _keep(self) -> None:
        if self._order.only_at and self._address != "127.0.0.1":
            self._refuse(
                f"the machine {self._address} came to a cluster that was one machine when the mesh was started: start "
                "the mesh anew, so that it looks at all of them"
            )
        elif self._model_is_here():
            try:
                while not self._stopping:
                    self._wait(self._try_port())
            finally:
                if self._leaving is not None:
                    self._leaving.end()

    def _model_is_here(self) -> bool:
        from nodes.model_files import DEFAULT_MODEL, models_dir

        model = self._order.settings.get("MESHNET_MODEL", "") or DEFAULT_MODEL
        if model != DEFAULT_MODEL or (models_dir(Path(self._order.var_dir)) / model).is_dir():
            return True
        self._seen = Seen(Stand.STARTING, f"fetching {model}")
        command = [sys.executable, "manage.py", "fetch_model", model]
        with self._supervisor(self._child("fetch", command, "")) as supervisor:
            (child,) = supervisor.children
            while not self._stopping:
                supervisor.step()
                if (models_dir(Path(self._order.var_dir)) / model).is_dir():
                    return True
                if child.process is None and child.start_at is None:
                    self._refuse(f"{model} could not be fetched (log: {child.log.path})")
                    return False
                self._pause(LOOK_SECONDS)
        return False

    def _try_port(self) -> float:
        """Keeps the node running on one port; how long to wait before there is another."""
        port = self._find_port(self._address)
        url = make_url("http", self._address, port)
        command = [sys.executable, "-m", "gunicorn", "-c", "meshsite/gunicorn_node.py", "meshsite.wsgi"]
        with self._supervisor(self._child(self._order.name, command, url)) as supervisor:
            (child,) = supervisor.children
            while not self._stopping:
                supervisor.step()
                self._seen = _seen(child, self._patience is not None)
                if child.log.refusal is not None and child.process is None:
                    self._refuse(child.log.refusal)
                    return 0.0
                if self._patience is not None:
                    self._drain(child, url, self._patience)
                elif child.process is None and child.start_at is None:
                    self._seen = Seen(Stand.WAITING, f"it ended before it had answered (log: {child.log.path})")
                    return AGAIN_SECONDS
                elif child.process is None and not can_bind(self._address, port):
                    self._seen = Seen(Stand.WAITING, f"another process has the port {port}")
                    return PORT_TAKEN_SECONDS
                self._pause(LOOK_SECONDS)
            supervisor.stop(self._hurry_up)
        return 0.0

    def _drain(self, child: Child, url: str, patience: float) -> None:
        """Ends it all once the node holds no session, does not serve, or is not waited for any more."""
        if self._leaving is None:
            self._leaving = self._leave(url, self._order.settings.get("MESHNET_SECRET", ""), patience)
        if child.ready_at is None or self._leaving.step():
            self._stopping = True

    def _refuse(self, reason: str) -> None:
        """The end of all tries; waits for the actor's end, since an actor that ended would be started again."""
        self._seen = Seen(Stand.REFUSED, reason)
        while not self._stopping and self._patience is None:
            self._wake.wait()
            self._wake.clear()
        self._stopping = True

    def _supervisor(self, spec: ChildSpec) -> Any:
        return self._supervise([spec], Path(self._order.var_dir) / "logs", self._lines.append)

    def _child(self, name: str, command: list[str], url: str) -> ChildSpec:
        folder = Path(self._order.folder)
        own = {"MESHNET_VAR_DIR": self._order.var_dir, "DJANGO_SETTINGS_MODULE": "meshsite.settings"}
        if url:
            own = {**self._order.settings, **own, "MESHNET_BIND": url.partition("://")[2], "MESHNET_URL": url}
        return ChildSpec(name, command, node_environment(self._environ, own, self._order.threads), url, folder)

    def _pause(self, seconds: float) -> None:
        self._wake.wait(seconds)
        self._wake.clear()

    def _wait(self, seconds: float) -> None:
        until = self._clock() + seconds
        while not self._stopping and self._clock() < until:
            if self._patience is not None:
                self._stopping = True
            self._pause(LOOK_SECONDS)

    def _hurry_up(self, seconds: float) -> bool:
        self._pause(seconds)
        return self._hurry


def _seen(child: Child, is_retired: bool) -> Seen:
    if is_retired:
        return Seen(Stand.LEAVING, url=child.spec.url)
    if child.process is None:
        return Seen(Stand.WAITING, f"it ended, and is started again (log: {child.log.path})", child.spec.url)
    return Seen(Stand.STARTING if child.ready_at is None else Stand.READY, url=child.spec.url)


def node_environment(environ: Mapping[str, str], own: Mapping[str, str], threads: int) -> dict[str, str]:
    """The machine's environment without what is not the node's, and the node's settings in it."""
    kept = {name: value for name, value in environ.items() if not name.startswith(_NOT_PASSED_ON)}
    made = {**kept, "PYTHONUNBUFFERED": "1", **own}
    if made.get("MESHNET_THREADS", "") in ("", "0"):
        made["MESHNET_THREADS"] = str(threads)
    return made


def leave_over_http(url: str, secret: str, seconds: float) -> LeavingNode:
    return LeavingNode(lambda: HttpNodeClient(url, secret), seconds)


def free_port(address: str) -> int:
    """A port of the address that nobody has now; somebody may take it before the node does."""
    with socket.socket(_family(address)) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def can_bind(address: str, port: int) -> bool:
    with socket.socket(_family(address)) as probe:
        # As gunicorn binds: connections that are only waiting to be forgotten do not matter.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True


def _family(address: str) -> socket.AddressFamily:
    found = as_address(address)
    return socket.AF_INET6 if found is not None and found.version == 6 else socket.AF_INET
