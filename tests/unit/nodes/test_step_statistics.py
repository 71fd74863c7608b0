from __future__ import annotations

from nodes.errors import Busy, ComputeFailed, KVCacheMiss
from nodes.step_statistics import REMEMBERED_ERRORS, StepStatistics
from nodes.wire import Timings


def test_steps_tokens_and_times_add_up() -> None:
    statistics = StepStatistics()
    statistics.count("prefill", 12, Timings(1.0, 30.0))
    statistics.count("decode", 1, Timings(0.5, 3.0))
    statistics.count("decode", 1, Timings(0.0, 3.0))
    found = statistics.as_json()
    assert found["steps"] == {"prefill": 1, "decode": 2, "stateless": 0}
    assert (found["tokens"], found["compute_ms"], found["queue_ms"]) == (14, 36.0, 1.5)


def test_faults_are_remembered_and_everyday_refusals_only_counted() -> None:
    statistics = StepStatistics(wall=lambda: 7.0)
    for error in (KVCacheMiss("gone"), Busy("full"), ComputeFailed("first"), ComputeFailed("second")):
        statistics.fail(error)
    found = statistics.as_json()
    assert found["refusals"] == {"cache_miss": 1, "busy": 1, "compute_failed": 2}
    assert found["errors"] == [
        {"at": 7.0, "code": "compute_failed", "detail": "second"},
        {"at": 7.0, "code": "compute_failed", "detail": "first"},
    ]


def test_only_the_last_errors_are_kept() -> None:
    statistics = StepStatistics()
    for number in range(REMEMBERED_ERRORS + 5):
        statistics.fail(ComputeFailed(str(number)))
    errors = statistics.as_json()["errors"]
    assert len(errors) == REMEMBERED_ERRORS
    assert errors[0]["detail"] == str(REMEMBERED_ERRORS + 4)
