from __future__ import annotations

from typing import Any

import pytest
from django.core.checks import run_checks

from meshsite.checks import problems_before_serving

GOOD_SECRET = "a secret of enough characters"


def ids() -> list[str | None]:
    return [message.id for message in run_checks() if str(message.id).startswith("meshnet.")]


@pytest.mark.parametrize(
    ("name", "value", "check"),
    [
        ("MESHNET_SECRET", "short", "meshnet.E001"),
        ("MESHNET_METRICS_TOKEN", "short", "meshnet.E004"),
        ("MESHNET_NODES", ["127.0.0.1:8001"], "meshnet.E002"),
        ("MESHNET_NODES", ["http://a:1", "ftp://b:2"], "meshnet.E002"),
        ("MESHNET_NODES", ["http://a:1/forward"], "meshnet.E002"),
        ("MESHNET_LAYERS", "5", "meshnet.E003"),
        ("MESHNET_LAYERS", "9:3", "meshnet.E003"),
    ],
)
def test_a_bad_value_is_found(settings: Any, name: str, value: Any, check: str) -> None:
    setattr(settings, name, value)
    assert ids() == [check]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MESHNET_SECRET", ""),
        ("MESHNET_SECRET", GOOD_SECRET),
        ("MESHNET_METRICS_TOKEN", GOOD_SECRET),
        ("MESHNET_NODES", ["http://127.0.0.1:8001", "https://node.example/", "http://[::1]:8001"]),
        ("MESHNET_LAYERS", "0:15"),
    ],
)
def test_a_good_value_is_not_complained_about(settings: Any, name: str, value: Any) -> None:
    setattr(settings, name, value)
    assert ids() == []


def test_every_complaint_says_what_to_do(settings: Any) -> None:
    settings.MESHNET_SECRET, settings.MESHNET_NODES, settings.MESHNET_LAYERS = "short", ["x"], "x"
    messages = [message for message in run_checks() if str(message.id).startswith("meshnet.")]
    assert len(messages) == 3
    assert all(message.hint for message in messages)


@pytest.mark.parametrize(("bind", "found"), [("0.0.0.0:8000", ["meshnet.W001"]), ("127.0.0.1:8000", [])])
def test_debug_is_warned_of_where_others_can_reach_it(settings: Any, bind: str, found: list[str]) -> None:
    settings.DEBUG, settings.MESHNET_BIND = True, bind
    assert ids() == found


def test_nothing_serves_without_a_secret(settings: Any) -> None:
    settings.MESHNET_DJANGO_SECRET_KEY = "x"
    for secret in ("", "fifteen letters"):
        settings.MESHNET_SECRET = secret
        assert any("MESHNET_SECRET must be set" in problem for problem in problems_before_serving())


def test_a_head_does_not_serve_without_djangos_key_and_a_node_needs_none(settings: Any) -> None:
    settings.MESHNET_SECRET, settings.MESHNET_DJANGO_SECRET_KEY = GOOD_SECRET, ""
    assert [problem.split()[0] for problem in problems_before_serving()] == ["MESHNET_DJANGO_SECRET_KEY"]
    settings.SERVES_HEAD = False
    assert problems_before_serving() == []
