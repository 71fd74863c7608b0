"""What the two gunicorn configurations share: refusing to serve wrongly, loading in the worker, leaving in order.

Exit codes: 3 = refused (starting again cannot help, `mesh` does not), 4 = crashed while loading. gunicorn's master
ends with the code of a worker that ends with 3 or 4.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, NoReturn

from django.core.exceptions import ImproperlyConfigured

from meshsite.parent_death import follow_parent

REFUSED = 3
#: gthread with an end to silent requests (meshsite/worker.py).
WORKER_CLASS = "meshsite.worker.Worker"
CRASHED = 4
#: Begins the one line that says why; `mesh` shows that line.
REFUSAL = "Refused to start: "

#: Below the 8 s after which `mesh` kills, so that a worker says good-bye itself.
GRACEFUL_SECONDS = 7
#: How long a node that is told to stop lets running answers go on. Below GRACEFUL_SECONDS.
LEAVE_SECONDS = 5.0
#: DESIGN fact 11: heads keep pooled connections for less than this.
KEEPALIVE_SECONDS = 75
#: Threads of a head beside those of its answers.
SPARE_THREADS = 8
#: A worker whose main thread is silent for longer is killed. Not a limit for requests.
TIMEOUT_SECONDS = 30


def load_settings(roles: Sequence[str], instead: str) -> Any:
    """Django's settings, for use while gunicorn reads its configuration. Refuses bad values and other roles."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "meshsite.settings")
    from django.conf import settings

    try:
        role = settings.ROLE
    except ImproperlyConfigured as error:
        refuse(str(error))
    if role not in roles:
        refuse(f"MESHNET_ROLE is {role}, this configuration serves {' or '.join(roles)}. {instead}")
    return settings


def refuse(reason: str, log: Any = None) -> NoReturn:
    """One line, no traceback, exit code 3. Raises SystemExit, which gunicorn lets through everywhere."""
    if log is None:  # gunicorn has no log yet
        sys.stderr.write(f"{REFUSAL}{reason}\n")
    else:
        log.error("%s%s", REFUSAL, reason)
    raise SystemExit(REFUSED)


def refuse_master(server: Any, reason: str) -> NoReturn:
    """Refuses before a socket is bound; the pid file is already there."""
    if server.pidfile is not None:
        server.pidfile.unlink()
    refuse(reason, server.log)


def check_master(server: Any) -> None:
    """What both roles demand of gunicorn's own options, wherever they were set. For `on_starting`."""
    from meshsite import open_api
    from meshsite.checks import problems_before_serving

    for problem in problems_before_serving():
        refuse_master(server, problem)
    if exposed := open_api.exposed(server.cfg.address):
        refuse_master(server, exposed)
    # gunicorn would turn `sync` with threads into gthread in silence: what was asked for counts.
    asked = server.cfg.settings["worker_class"].get()
    if asked != WORKER_CLASS:
        refuse_master(
            server, f"the worker class is {asked}: only gthread keeps long streams alive. Leave out -k / worker_class."
        )
    if server.cfg.preload_app:
        refuse_master(server, "preload_app loads torch before the fork, where it hangs. Leave out --preload.")


def load_worker(worker: Any) -> None:
    """Loads what this role serves, then wraps SIGTERM. For `post_worker_init`, in the worker's main thread."""
    from django.conf import settings

    from nodes.errors import ModelUnavailable, ShardRefused

    # Until something is served there is nothing to finish: a stop during a load of minutes is obeyed at once.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    # gunicorn's own look at its parent comes once a worker serves: one that loads would outlive a killed master.
    follow_parent(worker.ppid, signal.SIGTERM)()
    try:
        with _beating(worker):
            _check_system(worker.log)
            _check_sockets(worker)
            if settings.ROLE in ("node", "all"):
                from nodes.boot import boot_node

                _app("nodes").runtime = boot_node()
            if settings.SERVES_HEAD:
                from generation.runtime import boot_head

                _app("generation").runtime = boot_head()
    except (ShardRefused, ModelUnavailable, ImproperlyConfigured) as error:
        stop_runtimes()
        refuse(str(error), worker.log)
    except Exception as error:
        worker.log.exception("The worker could not load: %s: %s", type(error).__name__, error)
        stop_runtimes()
        raise SystemExit(CRASHED) from None
    _drain_first(worker)
    _quit_once(worker)
    worker.log.info("Ready to serve as %s.", settings.ROLE)
    if settings.MESHNET_HEADS and _app("nodes").runtime is not None:
        from nodes.announcer import start_announcing

        # The socket listens already: a head that asks who is there gets its answer as soon as this hook returns.
        _app("nodes").announcer = start_announcing(_app("nodes").runtime, _port(worker))


def stop_runtimes() -> None:
    """Stops what the worker served, head first. For `worker_exit`; the master calls that too, with nothing loaded."""
    from django.apps import apps

    if not apps.ready:
        return
    if apps.is_installed("nodes") and _app("nodes").announcer is not None:
        _app("nodes").announcer.say_goodbye()  # unless that was done on SIGTERM
    for runtime in _runtimes():
        runtime.stop()


def _port(worker: Any) -> int:
    """The port of the worker's first TCP socket; 0 when it has none."""
    names = [sock.getsockname() for sock in worker.sockets]
    return next((name[1] for name in names if isinstance(name, tuple)), 0)


def _runtimes() -> list[Any]:
    """What this process serves, head first."""
    from django.apps import apps

    found = [_app(label).runtime for label in ("generation", "nodes") if apps.is_installed(label)]
    return [runtime for runtime in found if runtime is not None]


def _app(label: str) -> Any:
    """The configuration of `nodes` or `generation`, which holds what this process serves."""
    from django.apps import apps

    return apps.get_app_config(label)


def _check_system(log: Any) -> None:
    from django.core.checks import ERROR, run_checks

    messages = run_checks()
    for message in messages:
        if message.level < ERROR:
            log.warning("%s", message)
    errors = [message for message in messages if message.level >= ERROR]
    if errors:
        raise ImproperlyConfigured(" ".join(f"{error.msg} ({error.id}) {error.hint or ''}".strip() for error in errors))


def _check_sockets(worker: Any) -> None:
    """What `check_master` could not see yet: sockets that systemd or a former master handed over."""
    from meshsite import open_api

    if open_api.is_open() and (exposed := open_api.exposed(sock.getsockname() for sock in worker.sockets)):
        raise ImproperlyConfigured(exposed)


@contextlib.contextmanager
def _beating(worker: Any) -> Iterator[None]:
    """Tells the master that the worker lives while its main thread loads, however long that takes."""
    done = threading.Event()

    def beat() -> None:
        while not done.wait(1.0):
            worker.notify()

    thread = threading.Thread(target=beat, name="meshnet-loading", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _drain_first(worker: Any) -> None:
    """On SIGTERM nothing new is taken in, since gunicorn goes on answering kept connections (fact 17)."""

    leaving = threading.Event()

    def leave(sig: int, frame: FrameType | None) -> None:
        for runtime in _runtimes():
            runtime.drain()
        node, announcer = _app("nodes").runtime, _app("nodes").announcer
        if node is None or (node.is_idle and announcer is None) or leaving.is_set():
            worker.handle_exit(sig, frame)
            return
        # gunicorn closes each connection after one more answer, and takes no new one: running answers would lose
        # their caches at the next step. They may go on for a while first.
        leaving.set()
        threading.Thread(
            target=leave_when_idle, args=(node, announcer, sig), name="meshnet-leaving", daemon=True
        ).start()

    def leave_when_idle(node: Any, announcer: Any, sig: int) -> None:
        if announcer is not None:
            announcer.say_goodbye()
        node.wait_idle(LEAVE_SECONDS)
        node.let_go()
        worker.handle_exit(sig, None)

    signal.signal(signal.SIGTERM, leave)
    signal.siginterrupt(signal.SIGTERM, False)  # as gunicorn has it: no system call of a request is broken off


def _quit_once(worker: Any) -> None:
    """On SIGINT and SIGQUIT heads are told good-bye, and then gunicorn's own handler ends the worker at once.

    Ctrl-C comes twice: from the terminal, and as SIGQUIT from the master. A second signal inside gunicorn's handler can
    find its thread pool locked by the first, and would break off the good-bye.
    """

    def leave(sig: int, frame: FrameType | None) -> None:
        for quick in (signal.SIGINT, signal.SIGQUIT):
            signal.signal(quick, lambda *_: None)  # SIG_IGN would make Python complain of one that is on its way
        announcer = _app("nodes").announcer
        if announcer is not None:
            announcer.say_goodbye()
        worker.handle_quit(sig, frame)

    for quick in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(quick, leave)
