from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.core.checks import run_checks

from meshsite.checks import problems_before_serving
from tests.certificates import Authority

GOOD_SECRET = "a secret of enough characters"


def ids() -> list[str | None]:
    return [message.id for message in run_checks() if str(message.id).startswith("meshnet.")]


@pytest.mark.parametrize(
    ("name", "value", "check"),
    [
        ("MESHNET_SECRET", "short", "meshnet.E001"),
        ("MESHNET_SECRET_ALSO", "short", "meshnet.E001"),
        ("MESHNET_METRICS_TOKEN", "short", "meshnet.E004"),
        ("FORWARDED_ALLOW_IPS", ["127.0.0.1", "*"], "meshnet.E014"),
        ("FORWARDED_ALLOW_IPS", ["10.0.0.1/24"], "meshnet.E014"),
        ("MESHNET_NODES", ["127.0.0.1:8001"], "meshnet.E002"),
        ("MESHNET_NODES", ["http://a:1", "ftp://b:2"], "meshnet.E002"),
        ("MESHNET_NODES", ["http://a:1/forward"], "meshnet.E002"),
        ("MESHNET_NODES", ["http://user:word@127.0.0.1:1"], "meshnet.E002"),
        ("MESHNET_NODES", ["https://10.0.0.7:8001"], "meshnet.E005"),
        ("MESHNET_NODES", ["http://169.254.169.254"], "meshnet.E005"),
        ("MESHNET_NODE_NETWORKS", ["10.0.0.0/8", "ten"], "meshnet.E006"),
        ("MESHNET_NODE_NETWORKS", ["10.0.0.7/8"], "meshnet.E006"),
        ("MESHNET_HEADS", ["mesh.example.org"], "meshnet.E007"),
        ("MESHNET_HEADS", ["https://mesh.example.org", "http://10.0.0.7:8000"], "meshnet.E007"),
        ("MESHNET_URL", "node.example.org:8001", "meshnet.E007"),
        ("MESHNET_CORS_ORIGINS", ["*"], "meshnet.E021"),
        ("MESHNET_CORS_ORIGINS", ["null"], "meshnet.E021"),
        ("MESHNET_CORS_ORIGINS", ["https://a.example", "b.example"], "meshnet.E021"),
        ("MESHNET_CORS_ORIGINS", ["https://a.example/"], "meshnet.E021"),
        ("MESHNET_CORS_ORIGINS", ["https://*.example"], "meshnet.E021"),
        ("MESHNET_CORS_ORIGINS", ["https://A.example"], "meshnet.E021"),
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
        ("MESHNET_SECRET_ALSO", GOOD_SECRET),
        ("FORWARDED_ALLOW_IPS", ["10.0.0.0/24", "::1"]),
        ("MESHNET_METRICS_TOKEN", GOOD_SECRET),
        ("MESHNET_NODES", ["http://127.0.0.1:8001", "https://node.example/", "http://[::1]:8001"]),
        ("MESHNET_NODE_NETWORKS", ["10.0.0.0/8", "fd00::/8"]),
        ("MESHNET_HEADS", ["https://10.0.0.7", "https://mesh.example.org/", "http://127.0.0.1:8000"]),
        ("MESHNET_URL", "http://10.0.0.7:8001"),
        ("MESHNET_CORS_ORIGINS", ["https://chat.example.org", "http://localhost:3000", "http://[::1]:8080"]),
        ("MESHNET_LAYERS", "0:15"),
    ],
)
def test_a_good_value_is_not_complained_about(settings: Any, name: str, value: Any) -> None:
    setattr(settings, name, value)
    assert ids() == []


def test_nodes_may_be_in_the_networks_that_are_named(settings: Any) -> None:
    settings.MESHNET_NODES = ["https://10.0.0.7", "http://10.0.0.8:8001"]
    settings.MESHNET_NODE_NETWORKS = ["10.0.0.0/24"]
    assert ids() == ["meshnet.E005"], "plain HTTP needs a setting of its own"
    settings.MESHNET_PLAIN_HTTP = True
    assert ids() == []


def test_every_complaint_says_what_to_do(settings: Any) -> None:
    settings.MESHNET_SECRET, settings.MESHNET_NODES, settings.MESHNET_LAYERS = "short", ["x"], "x"
    messages = [message for message in run_checks() if str(message.id).startswith("meshnet.")]
    assert len(messages) == 3
    assert all(message.hint for message in messages)


@pytest.mark.parametrize(
    ("https", "bind", "tls", "found"),
    [
        (True, "127.0.0.1:8000", False, []),
        (True, "unix:/run/meshnet.sock", False, []),
        (True, "0.0.0.0:8000", True, []),
        (True, "0.0.0.0:8000", False, ["meshnet.W003"]),
        (False, "0.0.0.0:8000", True, ["meshnet.W002"]),
        (False, "0.0.0.0:8000", False, []),
    ],
)
def test_a_head_is_warned_where_https_is_only_half_there(
    settings: Any, tmp_path: Path, https: bool, bind: str, tls: bool, found: list[str]
) -> None:
    settings.MESHNET_HTTPS, settings.MESHNET_BIND = https, bind
    if tls:
        for name, value in Authority(tmp_path).serves().items():
            setattr(settings, name, value)
    assert ids() == found
    settings.SERVES_HEAD = False
    assert ids() == []


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
