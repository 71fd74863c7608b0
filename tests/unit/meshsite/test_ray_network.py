"""What is missing for a mesh beyond loopback is said at once, all of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from meshsite.engine import EngineRefused
from meshsite.ray_network import check_network

LOOPBACK = ["127.0.0.0/8", "::1/128"]


def check(
    addresses: Sequence[str], *, host: str = "127.0.0.1", networks: Sequence[str] = LOOPBACK, plain: bool = False
) -> None:
    check_network(addresses, head_host=host, own_address="10.0.0.1", networks=networks, plain_http=plain)


def test_loopback_needs_nothing() -> None:
    check(["127.0.0.1"])
    check(["127.0.0.2", "127.0.0.3", "::1"])


def test_all_that_is_missing_is_named_in_one_line() -> None:
    with pytest.raises(EngineRefused) as refused:
        check(["10.0.0.1", "10.0.0.2"])
    assert str(refused.value) == (
        "The nodes of this Ray cluster are at 10.0.0.1, 10.0.0.2. Set --host 10.0.0.1, since the nodes cannot reach a "
        "head on 127.0.0.1; MESHNET_NODE_NETWORKS=127.0.0.0/8,::1/128,10.0.0.1/32,10.0.0.2/32, or networks that hold "
        "these; MESHNET_PLAIN_HTTP=true, if it is a network that you trust."
    )


def test_with_all_of_it_set_the_mesh_may_start() -> None:
    check(["10.0.0.1", "10.0.0.2"], host="10.0.0.1", networks=["10.0.0.0/24"], plain=True)


@pytest.mark.parametrize(
    ("host", "networks", "plain", "missing"),
    [
        ("localhost", ["10.0.0.0/8"], True, "--host 10.0.0.1"),
        ("10.0.0.1", ["10.0.0.1/32"], True, "MESHNET_NODE_NETWORKS=10.0.0.1/32,10.0.0.2/32"),
        ("10.0.0.1", ["10.0.0.0/8"], False, "MESHNET_PLAIN_HTTP=true"),
    ],
)
def test_each_is_asked_for_by_itself(host: str, networks: list[str], plain: bool, missing: str) -> None:
    with pytest.raises(EngineRefused, match=missing) as refused:
        check(["10.0.0.1", "10.0.0.2"], host=host, networks=networks, plain=plain)
    assert ";" not in str(refused.value)


def test_nodes_beside_a_head_that_is_not_on_loopback_speak_plain_http_to_it() -> None:
    with pytest.raises(EngineRefused, match="Set MESHNET_PLAIN_HTTP=true"):
        check(["127.0.0.1"], host="10.0.0.1")


def test_an_ipv6_machine_is_a_network_of_its_own() -> None:
    with pytest.raises(EngineRefused, match="fd00::2/128"):
        check(["fd00::2"], host="fd00::1", plain=True)
