from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodes.errors import BadRequest, NodeUnreachable, OutsideNetworks
from nodes.networks import NodeNetworks, as_address, make_url, normal_url, split_url

LOOPBACK = NodeNetworks(["127.0.0.0/8", "::1/128"], plain_http=False)
ANYWHERE = NodeNetworks(["0.0.0.0/0", "::/0"], plain_http=True)

Resolve = Callable[..., None]


@pytest.fixture
def resolve(monkeypatch: pytest.MonkeyPatch) -> Resolve:
    """`resolve("10.0.0.1", …)` makes every name have these addresses."""

    def resolve(*addresses: str) -> None:
        def getaddrinfo(host: str, port: int, **kwargs: Any) -> list[Any]:
            if not addresses:
                raise socket.gaierror(-2, "Name or service not known")
            return [
                (socket.AF_INET6, 1, 6, "", (address, port, 0, 0))
                if ":" in address
                else (socket.AF_INET, 1, 6, "", (address, port))
                for address in addresses
            ]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)

    return resolve


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:8001",
        "//127.0.0.1:8001",
        "ftp://127.0.0.1",
        "file:///etc/passwd",
        "http://",
        "http://:8001",
        "http://127.0.0.1:0",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:port",
        "http://user@127.0.0.1",
        "http://user:word@127.0.0.1:8001",
        "http://127.0.0.1:8001/forward",
        "http://127.0.0.1:8001//",
        "http://127.0.0.1:8001?x=1",
        "http://127.0.0.1:8001#x",
        "http://127.0.0.1\\@10.0.0.1",
        "http://127.0.0.1:8001\n",
        "http://127.0.0.1\t:8001",
        " http://127.0.0.1:8001",
        "http://127.1:8001",
        "http://2130706433",
        "http://0x7f.0.0.1",
        "http://127.0.0.0x1",
        "http://[::1",
        "http://[name]",
        "http://[fe80::1%25eth0]",
        "http://-name",
        "http://na me",
        "http://näme",
        "http://a..b",
        f"http://{'a' * 64}.org",
        f"http://{'a.' * 150}org",
    ],
)
def test_what_is_no_url_of_a_node_is_refused(url: str) -> None:
    with pytest.raises(BadRequest) as caught:
        ANYWHERE.check(url)
    assert not isinstance(caught.value, OutsideNetworks)


@pytest.mark.parametrize(
    ("url", "parts", "normal"),
    [
        ("http://127.0.0.1:8001", ("http", "127.0.0.1", 8001), "http://127.0.0.1:8001"),
        ("HTTP://127.0.0.1:8001/", ("http", "127.0.0.1", 8001), "http://127.0.0.1:8001"),
        ("https://Node-1.Example.org", ("https", "node-1.example.org", 443), "https://node-1.example.org"),
        ("https://node_1:443", ("https", "node_1", 443), "https://node_1"),
        ("http://localhost:80", ("http", "localhost", 80), "http://localhost"),
        ("https://localhost:80", ("https", "localhost", 80), "https://localhost:80"),
        ("http://[0:0::1]:8001", ("http", "0:0::1", 8001), "http://[::1]:8001"),
        ("http://[::ffff:127.0.0.1]:8001", ("http", "::ffff:127.0.0.1", 8001), "http://127.0.0.1:8001"),
    ],
)
def test_a_url_has_one_way_to_be_written(url: str, parts: tuple[str, str, int], normal: str) -> None:
    assert split_url(url) == parts
    assert normal_url(url) == normal
    assert normal_url(normal) == normal


@given(st.text(max_size=40))
def test_any_text_is_a_url_or_a_bad_request(text: str) -> None:
    for candidate in (text, f"http://{text}"):
        try:
            LOOPBACK.check(candidate)
        except BadRequest:
            continue
        assert normal_url(normal_url(candidate)) == normal_url(candidate)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.9.10", "[::1]", "[::ffff:127.0.0.1]"])
def test_by_default_nodes_are_on_this_machine(address: str) -> None:
    LOOPBACK.check(f"http://{address}:8001")


@pytest.mark.parametrize(
    "address", ["10.0.0.7", "8.8.8.8", "[2001:db8::1]", "[::ffff:10.0.0.7]", "[fd00::1]", "192.168.1.1"]
)
def test_by_default_nodes_are_nowhere_else(address: str) -> None:
    with pytest.raises(OutsideNetworks, match="MESHNET_NODE_NETWORKS"):
        LOOPBACK.check(f"https://{address}:8001")


@pytest.mark.parametrize(
    "address",
    ["169.254.169.254", "[fe80::1]", "[::ffff:169.254.169.254]", "224.0.0.1", "[ff02::1]", "[::]", "0.0.0.0"],  # noqa: S104
)
def test_no_network_that_is_given_lets_these_in(address: str) -> None:
    with pytest.raises(OutsideNetworks, match="no node can be there"):
        ANYWHERE.check(f"https://{address}:8001")


def test_plain_http_to_another_machine_needs_its_own_setting() -> None:
    networks = NodeNetworks(["10.0.0.0/8"], plain_http=False)
    networks.check("https://10.0.0.7")
    with pytest.raises(OutsideNetworks, match="MESHNET_PLAIN_HTTP=true"):
        networks.check("http://10.0.0.7:8001")
    NodeNetworks(["10.0.0.0/8"], plain_http=True).check("http://10.0.0.7:8001")


def test_a_name_is_let_through_until_it_is_connected_to() -> None:
    LOOPBACK.check("https://node.example.org")


def test_a_name_is_connected_to_where_that_is_allowed(resolve: Resolve) -> None:
    resolve("10.0.0.7", "127.0.0.1", "169.254.1.1", "::1", "127.0.0.1")
    assert LOOPBACK.addresses("node.example.org", 8001, tls=False) == [
        (socket.AF_INET, ("127.0.0.1", 8001)),
        (socket.AF_INET6, ("::1", 8001, 0, 0)),
    ]


@pytest.mark.parametrize(
    ("address", "tls", "says"),
    [
        ("10.0.0.7", True, "MESHNET_NODE_NETWORKS"),
        ("::ffff:10.0.0.7", True, "MESHNET_NODE_NETWORKS"),
        ("169.254.169.254", True, "no node can be there"),
        ("fe80::1%2", True, "no node can be there"),
    ],
)
def test_a_name_that_leads_elsewhere_is_not_connected_to(resolve: Resolve, address: str, tls: bool, says: str) -> None:
    resolve(address)
    with pytest.raises(NodeUnreachable, match=says):
        LOOPBACK.addresses("node.example.org", 8001, tls=tls)


def test_a_name_elsewhere_is_spoken_to_over_tls_alone(resolve: Resolve) -> None:
    resolve("10.0.0.7")
    networks = NodeNetworks(["10.0.0.0/8"], plain_http=False)
    assert networks.addresses("node", 443, tls=True) == [(socket.AF_INET, ("10.0.0.7", 443))]
    with pytest.raises(NodeUnreachable, match="MESHNET_PLAIN_HTTP"):
        networks.addresses("node", 80, tls=False)


def test_a_name_without_an_address_is_a_node_that_cannot_be_reached(resolve: Resolve) -> None:
    resolve()
    with pytest.raises(NodeUnreachable, match="has no address"):
        LOOPBACK.addresses("nowhere.example.org", 8001, tls=True)


def test_an_odd_name_is_no_exception_of_the_resolver() -> None:
    with pytest.raises(NodeUnreachable):
        LOOPBACK.addresses("a" * 70, 8001, tls=True)


def test_brackets_of_a_literal_are_not_part_of_its_name() -> None:
    assert LOOPBACK.addresses("[::1]", 8001, tls=False) == [(socket.AF_INET6, ("::1", 8001, 0, 0))]


@pytest.mark.parametrize("text", ["ten", "10.0.0.0/99", "10.0.0.7/8", ""])
def test_a_network_that_is_none_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        NodeNetworks([text], plain_http=False)


def test_the_settings_say_where_nodes_may_be(settings: Any) -> None:
    settings.MESHNET_NODE_NETWORKS, settings.MESHNET_PLAIN_HTTP = ["10.0.0.0/8"], True
    NodeNetworks.from_settings().check("http://10.0.0.7:8001")
    with pytest.raises(OutsideNetworks):
        NodeNetworks.from_settings().check("http://127.0.0.1:8001")


def test_heads_may_be_anywhere_but_not_in_plain_text(settings: Any) -> None:
    settings.MESHNET_NODE_NETWORKS, settings.MESHNET_PLAIN_HTTP = [], False
    NodeNetworks.for_heads().check("https://203.0.113.7")
    NodeNetworks.for_heads().check("http://127.0.0.1:8000")
    with pytest.raises(OutsideNetworks, match="MESHNET_PLAIN_HTTP"):
        NodeNetworks.for_heads().check("http://203.0.113.7")


def test_urls_are_made_of_what_a_socket_says() -> None:
    assert make_url("http", "10.0.0.7", 8001) == "http://10.0.0.7:8001"
    assert make_url("http", "::ffff:10.0.0.7", 8001) == "http://10.0.0.7:8001"
    assert make_url("https", "2001:db8::7", 443) == "https://[2001:db8::7]"
    assert as_address("name") is None
