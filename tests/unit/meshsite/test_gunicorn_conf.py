from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from django.apps import apps
from django.conf import settings as django_settings

from meshsite import gunicorn_conf
from nodes.errors import ModelUnavailable, ShardRefused
from tests.unit.meshsite.children import free_ports

SECRET = "a secret of enough characters"


def gunicorn(config: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs gunicorn to its end with one of the shipped configurations."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith("MESHNET_")}
    return subprocess.run(
        [sys.executable, "-m", "gunicorn", "-c", f"meshsite/gunicorn_{config}.py", *arguments, "meshsite.wsgi"],
        cwd=django_settings.BASE_DIR,
        env={
            **bare,
            "MESHNET_ROLE": config,
            "MESHNET_SECRET": SECRET,
            "MESHNET_DJANGO_SECRET_KEY": SECRET,
            "MESHNET_BIND": f"127.0.0.1:{free_ports(1)}",
            "MESHNET_MODEL": "/nowhere",
            **env,
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("config", "arguments", "env", "reason"),
    [
        ("node", ["-w", "2"], {}, "2 workers were asked for"),
        ("node", ["-k", "sync"], {}, "the worker class is sync"),
        ("node", ["-k", "sync", "--threads", "1"], {}, "the worker class is sync"),
        ("node", ["--preload"], {}, "preload_app"),
        ("node", ["--max-requests", "100"], {}, "max_requests"),
        ("node", ["--threads", "3"], {}, "56 threads are needed"),
        ("node", [], {"MESHNET_SECRET": ""}, "MESHNET_SECRET must be set"),
        ("node", [], {"MESHNET_KV_MAX_SESSIONS": "x"}, "MESHNET_KV_MAX_SESSIONS"),
        ("node", [], {"MESHNET_ROLE": "head"}, "MESHNET_ROLE is head"),
        ("node", [], {"MESHNET_LAYERS": "5"}, "meshnet.E003"),
        ("head", ["-k", "sync"], {}, "the worker class is sync"),
        ("head", ["--preload"], {}, "preload_app"),
        ("head", [], {"MESHNET_DJANGO_SECRET_KEY": ""}, "MESHNET_DJANGO_SECRET_KEY must be set"),
        ("head", [], {"MESHNET_ROLE": "all"}, "MESHNET_ROLE is all"),
    ],
)
def test_what_would_serve_wrongly_is_refused_in_one_line_with_code_3(
    config: str, arguments: list[str], env: dict[str, str], reason: str
) -> None:
    result = gunicorn(config, *arguments, **env)
    assert result.returncode == 3, result.stderr
    [line] = [line for line in result.stderr.splitlines() if "Refused to start: " in line]
    assert reason in line
    assert "Traceback" not in result.stderr


# -- the worker's side, without gunicorn


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def error(self, message: str, *arguments: Any) -> None:
        self.lines.append(message % arguments)

    info = warning = exception = error


class Runtime:
    """What a node or a head serves: remembers what it was told."""

    def __init__(self) -> None:
        self.is_idle = True
        self.waiting, self.ended = threading.Event(), threading.Event()
        self.told: list[str] = []

    def drain(self) -> None:
        self.told.append("drain")

    def stop(self) -> None:
        self.told.append("stop")

    def wait_idle(self, seconds: float) -> None:
        self.waiting.set()
        assert self.ended.wait(5)

    def let_go(self) -> None:
        self.told.append("let go")


@pytest.fixture
def worker(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    # The suite itself must not end with whoever started it.
    monkeypatch.setattr(gunicorn_conf, "follow_parent", lambda parent, sig: lambda: None)
    settings.ROLE, settings.SERVES_HEAD = "node", False
    settings.ROOT_URLCONF = "meshsite.urls_node"
    former = {sig: signal.getsignal(sig) for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)}
    worker = SimpleNamespace(log=Log(), ppid=os.getppid(), left=[])
    worker.notify = lambda: None
    worker.handle_exit = lambda sig, frame: worker.left.append(sig)
    yield worker
    for sig, handler in former.items():
        signal.signal(sig, handler)
    for label in ("nodes", "generation"):
        apps.get_app_config(label).runtime = None  # type: ignore[attr-defined]


def boot(monkeypatch: pytest.MonkeyPatch, result: Any) -> None:
    """Makes `boot_node` return the result, or raise it."""
    import nodes.boot

    def boot_node() -> Any:
        if isinstance(result, Exception):
            raise result
        return result() if callable(result) else result

    monkeypatch.setattr(nodes.boot, "boot_node", boot_node)


def test_a_loaded_node_is_served_and_drained_before_gunicorn_leaves(
    worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = Runtime()
    worker.handle_exit = lambda sig, frame: worker.left.append(list(runtime.told))
    boot(monkeypatch, runtime)
    gunicorn_conf.load_worker(worker)
    assert apps.get_app_config("nodes").runtime is runtime  # type: ignore[attr-defined]
    os.kill(os.getpid(), signal.SIGTERM)
    assert worker.left == [["drain"]]
    gunicorn_conf.stop_runtimes()
    assert runtime.told == ["drain", "stop"]


def test_f08_a_node_lets_running_answers_go_on_before_gunicorn_leaves(
    worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = Runtime()
    runtime.is_idle = False
    left = threading.Event()
    worker.handle_exit = lambda sig, frame: (worker.left.append(list(runtime.told)), left.set())
    boot(monkeypatch, runtime)
    gunicorn_conf.load_worker(worker)
    os.kill(os.getpid(), signal.SIGTERM)
    assert runtime.waiting.wait(5)
    assert worker.left == [], "it still serves"
    runtime.ended.set()
    assert left.wait(5)
    assert worker.left == [["drain", "let go"]]


def test_a_second_signal_does_not_wait(worker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime()
    runtime.is_idle = False
    boot(monkeypatch, runtime)
    gunicorn_conf.load_worker(worker)
    os.kill(os.getpid(), signal.SIGTERM)
    assert runtime.waiting.wait(5)
    os.kill(os.getpid(), signal.SIGTERM)
    assert worker.left == [signal.SIGTERM]
    runtime.ended.set()


@pytest.mark.parametrize("error", [ShardRefused("not proved"), ModelUnavailable("not here")])
def test_a_refusal_while_loading_is_one_line_and_code_3(
    worker: Any, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    boot(monkeypatch, error)
    with pytest.raises(SystemExit) as end:
        gunicorn_conf.load_worker(worker)
    assert end.value.code == gunicorn_conf.REFUSED
    assert worker.log.lines == [f"Refused to start: {error}"]


def test_a_crash_while_loading_is_logged_and_code_4(worker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    boot(monkeypatch, RuntimeError("a bug"))
    with pytest.raises(SystemExit) as end:
        gunicorn_conf.load_worker(worker)
    assert end.value.code == gunicorn_conf.CRASHED
    assert worker.log.lines == ["The worker could not load: RuntimeError: a bug"]


def test_what_was_loaded_before_a_refusal_is_stopped(
    worker: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import generation.runtime

    def refuse() -> None:
        raise ModelUnavailable("The head's files are not here.")

    settings.ROLE, settings.SERVES_HEAD = "all", True
    runtime = Runtime()
    boot(monkeypatch, runtime)
    monkeypatch.setattr(generation.runtime, "boot_head", refuse)
    with pytest.raises(SystemExit):
        gunicorn_conf.load_worker(worker)
    assert runtime.told == ["stop"]


def test_the_master_hears_of_a_worker_that_loads_for_long(worker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    heard = threading.Event()
    worker.notify = heard.set

    def slow() -> Runtime:
        assert heard.wait(30), "No sign of life came while the load was running."
        return Runtime()

    boot(monkeypatch, slow)
    gunicorn_conf.load_worker(worker)
    assert heard.is_set()


def test_a_failing_system_check_is_a_refusal(worker: Any, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.MESHNET_LAYERS = "9:3"
    boot(monkeypatch, Runtime())
    with pytest.raises(SystemExit) as end:
        gunicorn_conf.load_worker(worker)
    assert end.value.code == gunicorn_conf.REFUSED
    assert "'9:3' holds no layer. (meshnet.E003)" in worker.log.lines[0]


def test_a_later_worker_is_refused(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    settings.ROLE = "node"
    from meshsite import gunicorn_node

    server = SimpleNamespace(log=Log(), num_workers=2)
    gunicorn_node.nworkers_changed(server, 2, 1)
    assert server.num_workers == 1
    assert "A node keeps its one worker" in server.log.lines[0]


class FakeAnnouncer:
    """Takes down what it is told, beside what the runtime is."""

    def __init__(self, told: list[str]) -> None:
        self.told = told

    def say_goodbye(self) -> None:
        self.told.append("good-bye")


@pytest.fixture
def announcing(worker: Any, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The runtime of a node with heads, loaded; `worker.started` is what began to announce it."""
    import nodes.announcer

    runtime = Runtime()
    runtime.ended.set()
    worker.started, worker.gone = [], threading.Event()
    announcer = FakeAnnouncer(runtime.told)
    settings.MESHNET_HEADS = ["http://127.0.0.1:8000"]
    worker.sockets = [
        SimpleNamespace(getsockname=lambda: "/run/node.sock"),
        SimpleNamespace(getsockname=lambda: ("", 8001)),
    ]

    def handle_exit(sig: int, frame: Any) -> None:
        worker.left.append(list(runtime.told))
        worker.gone.set()

    def start_announcing(*given: Any) -> FakeAnnouncer:
        worker.started.append(given)
        return announcer

    worker.handle_exit = worker.handle_quit = handle_exit
    monkeypatch.setattr(nodes.announcer, "start_announcing", start_announcing)
    monkeypatch.setattr(apps.get_app_config("nodes"), "announcer", None)
    boot(monkeypatch, runtime)
    gunicorn_conf.load_worker(worker)
    return runtime


def test_a_node_with_heads_announces_its_port_and_says_good_bye_before_it_leaves(worker: Any, announcing: Any) -> None:
    assert worker.started == [(announcing, 8001)]
    os.kill(os.getpid(), signal.SIGTERM)
    assert worker.gone.wait(5)
    assert worker.left == [["drain", "good-bye", "let go"]]
    gunicorn_conf.stop_runtimes()
    assert announcing.told == ["drain", "good-bye", "let go", "good-bye", "stop"], "the announcer says it once"


def test_ctrl_c_says_good_bye_and_the_masters_echo_does_not_break_it_off(worker: Any, announcing: Any) -> None:
    os.kill(os.getpid(), signal.SIGINT)
    assert worker.left == [["good-bye"]]
    os.kill(os.getpid(), signal.SIGQUIT)
    assert worker.left == [["good-bye"]]
