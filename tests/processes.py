"""Real gunicorn processes for tests, booted fast: a forkserver has torch loaded and each process is forked from it.

Every process is started and ended by its own handle; nothing else on the machine is touched.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
import os
import signal
import socket
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SECRET = "a-secret-for-tests-only"
ROOT = Path(__file__).resolve().parent.parent

#: Of each test worker; the kernel's own begin at 32768.
FIRST_PORT, PORTS = 12_000, 10_000
# Runs that happen to go on at the same time begin in different places.
_ports = itertools.count(os.getpid() * 101 % PORTS)

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.preload"])


def free_port() -> int:
    """A port that stays free until its server has it: no client is given it by the kernel, nor another test worker."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    while True:
        port = FIRST_PORT + worker % 2 * PORTS + next(_ports) % PORTS
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def wait_until(condition: Callable[[], Any], seconds: float = 30.0, message: str = "") -> Any:
    """The first true value of the condition; fails the test when it does not come true in time."""
    give_up = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > give_up:
            raise AssertionError(message or f"{condition} did not come true within {seconds:g} s")
        time.sleep(0.01)
    return value


def _serve(environ: dict[str, str], config: str, log: str, preload: str) -> None:
    """In the child: becomes a gunicorn master with the given environment."""
    os.environ.update(environ)
    os.setsid()  # a Ctrl-C at the terminal reaches pytest, which ends the processes itself
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115  # lives as long as the process
    sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    sys.argv = ["gunicorn", "-c", str(ROOT / "meshsite" / config), "meshsite.wsgi"]
    exec(preload, {})  # noqa: S102  # code of the tests' own
    from gunicorn.app.wsgiapp import run

    run()


@dataclass
class Served:
    """One gunicorn process on loopback."""

    environ: dict[str, str]
    config: str
    folder: Path
    port: int = field(default_factory=free_port)
    process: Any = None
    #: Code that the process runs before it becomes a server.
    preload: str = ""
    #: How the test connects to a process that serves HTTPS.
    context: ssl.SSLContext | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self.context else 'http'}://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.folder / f"{self.config.removesuffix('.py')}-{self.port}.log"

    def start(self) -> Served:
        self.folder.mkdir(parents=True, exist_ok=True)
        environ = {"MESHNET_BIND": f"127.0.0.1:{self.port}", "MESHNET_VAR_DIR": str(self.folder), **self.environ}
        self.process = _context.Process(
            target=_serve, args=(environ, self.config, str(self.log), self.preload), daemon=True
        )
        self.process.start()
        return self

    def wait_ready(self, seconds: float = 60.0) -> Served:
        def ready() -> bool:
            if not self.process.is_alive():
                raise AssertionError(f"{self.url} ended with {self.process.exitcode}:\n{self.log.read_text()}")
            try:
                with urllib.request.urlopen(f"{self.url}/readyz", timeout=5, context=self.context) as answer:
                    return bool(answer.status == 200)
            except OSError:
                return False

        wait_until(ready, seconds, f"{self.url} was not ready in {seconds:g} s")
        return self

    def kill(self) -> None:
        """SIGKILL to the worker and the master, as when the machine is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.join()

    def stop(self) -> None:
        if self.process is None:
            return
        if self.config == "gunicorn_node.py" and self.process.is_alive():
            # A node lets running answers go on for some seconds; a test that is over has none.
            with contextlib.suppress(OSError):
                call(
                    f"{self.url}/sessions/evict",
                    "POST",
                    {"all": True},
                    secret_header(),
                    timeout=2,
                    context=self.context,
                )
        self.process.terminate()
        self.process.join(15)
        if self.process.is_alive():
            self.kill()


def node(folder: Path, model: Path, layers: str, **environ: str) -> Served:
    """A node of a model folder, not yet started."""
    return Served(
        {
            "MESHNET_ROLE": "node",
            "MESHNET_SECRET": SECRET,
            "MESHNET_MODEL": str(model),
            "MESHNET_LAYERS": layers,
            "MESHNET_THREADS": "1",
            **environ,
        },
        "gunicorn_node.py",
        folder,
    )


def head(folder: Path, model: Path, nodes: list[str], **environ: str) -> Served:
    """A head over nodes, not yet started; its database is migrated by `start_head`."""
    return Served(
        {
            "MESHNET_ROLE": "head",
            "MESHNET_SECRET": SECRET,
            "MESHNET_DJANGO_SECRET_KEY": "a-django-key-for-tests-only-of-fifty-characters-long",
            "MESHNET_MODEL": str(model),
            "MESHNET_NODES": ",".join(nodes),
            **environ,
        },
        "gunicorn_head.py",
        folder,
    )


def _manage(environ: dict[str, str], code: str, pipe: Any) -> None:
    """In a child: runs code with Django set up and sends what it leaves in `result`."""
    os.environ.update(environ)
    os.environ["DJANGO_SETTINGS_MODULE"] = "meshsite.settings"
    import django

    django.setup()
    scope: dict[str, Any] = {"result": None}
    exec(code, scope)  # noqa: S102  # code of the tests' own
    pipe.send(scope["result"])


def in_django(served: Served, code: str) -> Any:
    """Runs code against a head's own database, in a process of its own; the value of its variable `result`."""
    mine, theirs = _context.Pipe()
    environ = {"MESHNET_VAR_DIR": str(served.folder), **served.environ}
    served.folder.mkdir(parents=True, exist_ok=True)
    process = _context.Process(target=_manage, args=(environ, code, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        return mine.recv()
    finally:
        process.join()


def prepare_head(served: Served) -> str:
    """Migrates the head's database and makes an API key; returns the key."""
    key: str = in_django(
        served,
        "from django.core.management import call_command\n"
        "call_command('migrate', verbosity=0)\n"
        "from generation.models import APIKey\n"
        "_, result = APIKey.objects.create_key(name='tests')\n",
    )
    return key


def call(
    url: str,
    method: str = "GET",
    body: bytes | dict[str, Any] | None = None,
    headers: dict[str, str] | None = None,
    timeout: float = 30.0,
    context: ssl.SSLContext | None = None,
) -> tuple[int, dict[str, str], bytes]:
    """One HTTP request; any status is an answer."""
    sent = {"Content-Type": "application/json", **(headers or {})}
    data = json.dumps(body).encode() if isinstance(body, dict) else body
    request = urllib.request.Request(url, data=data, method=method, headers=sent)
    try:
        with urllib.request.urlopen(request, timeout=timeout, context=context) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, dict(error.headers), error.read()


def secret_header() -> dict[str, str]:
    return {"Authorization": f"Bearer {SECRET}"}


@contextlib.contextmanager
def serving(*served: Served) -> Iterator[None]:
    """Starts all, waits for all, ends all."""
    try:
        for one in served:
            one.start()
        for one in served:
            one.wait_ready()
        yield
    finally:
        for one in served:
            one.stop()
