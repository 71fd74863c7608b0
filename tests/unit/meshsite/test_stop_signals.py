from __future__ import annotations

import os
import signal

import pytest

from meshsite.stop_signals import SecondRequest, StopSignals
from tests.conftest import Clock


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_waiting_once(sig: signal.Signals) -> None:
    with StopSignals() as stop:
        assert not stop.wait(0)
        os.kill(os.getpid(), sig)
        assert stop.wait(60)
        assert not stop.wait(0)


def test_the_former_handlers_come_back() -> None:
    before = [signal.getsignal(sig) for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with StopSignals():
        assert signal.getsignal(signal.SIGTERM) != before[1]
    assert [signal.getsignal(sig) for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_a_hangup_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.wait(0)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_interrupt_that_a_script_has_ignored_still_counts() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with StopSignals() as stop:
            os.kill(os.getpid(), signal.SIGINT)
            assert stop.wait(60)
    finally:
        signal.signal(signal.SIGINT, before)


def test_during_the_end_a_double_signal_is_one_request_and_a_later_one_means_at_once(clock: Clock) -> None:
    asked = iter([True, False, True])
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        clock.advance(0.5)
        return next(asked)

    second = SecondRequest(wait, clock=clock)
    assert [second(0.1) for _ in range(4)] == [False, False, True, True]
    assert len(waits) == 3, "whoever is to hurry does not wait any more"
