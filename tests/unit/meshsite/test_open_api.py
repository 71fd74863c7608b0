from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from meshsite import gunicorn_conf, open_api
from meshsite.checks import check_api_auth, problems_before_serving

from .test_gunicorn_conf import gunicorn

ANYWHERE = "0.0.0.0"  # noqa: S104  # nothing is bound


@pytest.fixture(autouse=True)
def off(settings: Any) -> Any:
    settings.MESHNET_API_AUTH = "off"
    settings.MESHNET_BIND = "127.0.0.1:8000"
    settings.ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]"]
    settings.SERVES_HEAD = True
    return settings


@pytest.mark.parametrize("bind", ["127.0.0.1:8000", "localhost:8000", "[::1]:8000", "127.0.0.2:1"])
def test_loopback_alone_is_fine(off: Any, bind: str) -> None:
    off.MESHNET_BIND = bind
    assert open_api.problems() == []


@pytest.mark.parametrize(
    "bind", ["0.0.0.0:8000", ":8000", "8000", "[::]:8000", "10.0.0.1:1", "head:1", "unix:/run/head"]
)
def test_another_bind_is_a_problem_before_anything_is_bound(off: Any, bind: str) -> None:
    off.MESHNET_BIND = bind
    [error] = check_api_auth(None)
    assert (error.id, bind in error.msg) == ("meshnet.E020", True)
    assert error.msg in problems_before_serving()


@pytest.mark.parametrize("host", ["*", ".localhost", "head.example.org", "10.0.0.1", ANYWHERE])
def test_a_host_that_others_know_this_machine_by_is_a_problem(off: Any, host: str) -> None:
    off.ALLOWED_HOSTS = ["localhost", host]
    [error] = check_api_auth(None)
    assert (error.id, repr(host) in error.msg) == ("meshnet.E020", True)


@pytest.mark.parametrize("name", ["MESHNET_API_AUTH", "SERVES_HEAD"])
def test_with_keys_and_on_a_mere_node_everything_goes(off: Any, name: str) -> None:
    off.MESHNET_BIND, off.ALLOWED_HOSTS = "0.0.0.0:8000", ["*"]
    setattr(off, name, {"MESHNET_API_AUTH": "keys", "SERVES_HEAD": False}[name])
    assert check_api_auth(None) == []
    assert open_api.exposed([(ANYWHERE, 8000)]) is None


@pytest.mark.parametrize(
    "addresses",
    [[(ANYWHERE, 8000)], [("127.0.0.1", 1), ("10.0.0.1", 2)], [("::", 8000, 0, 0)], ["/run/head.sock"],
     [b"\0abstract"], ["fd://3"], [3]],
)  # fmt: skip
def test_an_address_that_others_reach_is_named(addresses: list[Any]) -> None:
    problem = open_api.exposed(addresses)
    assert problem is not None and "MESHNET_API_AUTH is off" in problem


def test_loopback_addresses_expose_nothing() -> None:
    assert open_api.exposed([("127.0.0.1", 1), ("::1", 2, 0, 0), ("localhost", 3)]) is None


def test_sockets_that_somebody_else_bound_are_looked_at_in_the_worker() -> None:
    def worker(address: Any) -> Any:
        return SimpleNamespace(sockets=[SimpleNamespace(getsockname=lambda: address)])

    gunicorn_conf._check_sockets(worker(("127.0.0.1", 8000)))
    with pytest.raises(ImproperlyConfigured, match="MESHNET_API_AUTH is off"):
        gunicorn_conf._check_sockets(worker((ANYWHERE, 8000)))


@pytest.mark.parametrize(
    ("arguments", "env", "reason"),
    [
        (["-b", "0.0.0.0:0"], {}, "the bind is 0.0.0.0:0"),
        (["-b", "127.0.0.1:0", "-b", "unix:/tmp/meshnet-none.sock"], {}, "the bind is /tmp/meshnet-none.sock"),
        ([], {"GUNICORN_CMD_ARGS": "-b :0"}, "the bind is :0"),
        ([], {"MESHNET_ALLOWED_HOSTS": "localhost,head.example.org"}, "'head.example.org'"),
    ],
)
def test_gunicorn_is_refused_wherever_its_bind_was_set(arguments: list[str], env: dict[str, str], reason: str) -> None:
    result = gunicorn("head", *arguments, MESHNET_API_AUTH="off", **env)
    assert result.returncode == 3, result.stderr
    [line] = [line for line in result.stderr.splitlines() if "Refused to start: " in line]
    assert reason in line
