from __future__ import annotations

import threading

import pytest

from generation.errands import Errands
from nodes.errors import HandoverFailed
from tests.processes import wait_until


def names(prefix: str) -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(prefix)]


def test_jobs_run_side_by_side_and_threads_are_used_again() -> None:
    errands = Errands("test-errand-a")
    both = threading.Barrier(3)
    for _ in range(2):
        errands.send(lambda: both.wait(10))
    both.wait(10)
    for _ in range(20):
        done = threading.Event()
        errands.send(done.set)
        assert done.wait(10)
    assert len(names("test-errand-a")) < 10
    errands.close()
    wait_until(lambda: not names("test-errand-a"))


def test_what_runs_at_the_end_runs_on_and_nothing_runs_after_it() -> None:
    errands = Errands("test-errand-b")
    go_on, done = threading.Event(), threading.Event()

    def job() -> None:
        assert go_on.wait(10)
        done.set()

    errands.send(job)
    errands.close()
    errands.close()
    late: list[int] = []
    errands.send(lambda: late.append(1))
    go_on.set()
    assert done.wait(10)
    wait_until(lambda: not names("test-errand-b"))
    assert not late


def test_no_thread_left_is_said_and_the_next_job_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    errands = Errands("test")

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(HandoverFailed, match="No thread"):
            errands.send(lambda: None)
    ran = threading.Event()
    errands.send(ran.set)
    assert ran.wait(10)
    errands.close()
