from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from meshsite.ray_cluster import RayCluster


class RayError(Exception):
    pass


def cluster(answers: dict[str, Any]) -> RayCluster:
    """A connection to a Ray whose calls have been answered so; no Ray is needed for that."""

    def get(call: str) -> Any:
        if isinstance(answers[call], Exception):
            raise answers[call]
        return answers[call]

    made = RayCluster.__new__(RayCluster)
    made._ray = SimpleNamespace(get=get, exceptions=SimpleNamespace(RayError=RayError))
    return made


def test_a_machine_says_what_it_is_or_why_that_is_not_known() -> None:
    ray = cluster(
        {"good": {"problem": ""}, "failed": RayError("Traceback …\n  some file\nValueError: no such thing\n")}
    )
    done = ["good", "failed"]
    assert ray._surveyed("good", done) == {"problem": ""}
    assert ray._surveyed("failed", done) == {"problem": "it could not be looked at (ValueError: no such thing)"}
    assert ray._surveyed("silent", done) == {"problem": "it did not answer within 60 s"}
