from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from nodes.engine import Engine
from nodes.errors import Draining


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine(threads=1)
    engine.start()
    yield engine
    engine.stop()


def test_work_runs_in_order_on_one_thread_of_its_own(engine: Engine) -> None:
    seen: list[tuple[int, int]] = []
    futures = [engine.submit(lambda i=i: seen.append((i, threading.get_ident()))) for i in range(50)]
    for future in futures:
        future.result()
    assert [index for index, _ in seen] == list(range(50))
    assert {thread for _, thread in seen} != {threading.get_ident()}
    assert len({thread for _, thread in seen}) == 1


def test_d12_gradients_are_off_on_the_engine_and_unchanged_for_the_caller(engine: Engine) -> None:
    weight = torch.ones(3, requires_grad=True)
    assert not engine.submit(lambda: (weight * 2).requires_grad).result().value
    assert engine.submit(torch.is_inference_mode_enabled).result().value
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


def test_an_exception_reaches_whoever_waits_and_the_engine_goes_on(engine: Engine) -> None:
    def fail() -> None:
        raise ZeroDivisionError("on purpose")

    with pytest.raises(ZeroDivisionError, match="on purpose"):
        engine.submit(fail).result()
    assert engine.submit(lambda: 5).result().value == 5


def test_waiting_and_running_are_told_apart() -> None:
    times = iter([10.0, 12.0, 15.0])
    engine = Engine(threads=1, clock=lambda: next(times))
    engine.start()
    timed = engine.submit(lambda: None).result()
    engine.stop()
    assert (timed.queue_ms, timed.compute_ms) == (2000.0, 3000.0)


def test_work_after_the_stop_is_refused() -> None:
    engine = Engine(threads=1)
    engine.start()
    queued = engine.submit(lambda: 1)
    engine.stop()
    assert queued.result().value == 1
    with pytest.raises(Draining):
        engine.submit(lambda: 2)


def test_the_number_of_threads_is_set_on_the_engine_thread() -> None:
    engine = Engine(threads=1)
    engine.start()
    assert engine.submit(torch.get_num_threads).result().value == 1
    engine.stop()
