from __future__ import annotations

import pytest

from meshsite.loopback import is_loopback_address, is_loopback_host


@pytest.mark.parametrize("text", ["127.0.0.1", "127.255.255.254", "::1", "0:0:0:0:0:0:0:1", "::ffff:127.0.0.1"])
def test_addresses_of_this_machine(text: str) -> None:
    assert is_loopback_address(text)


@pytest.mark.parametrize("text", ["", "localhost", "128.0.0.1", "0.0.0.1", "::", "::2", "::ffff:10.0.0.1", "127.1"])
def test_other_addresses_and_what_is_none(text: str) -> None:
    assert not is_loopback_address(text)


@pytest.mark.parametrize("text", ["localhost", "LocalHost", "127.0.0.1", "[::1]"])
def test_hosts_that_can_only_be_this_machine(text: str) -> None:
    assert is_loopback_host(text)


@pytest.mark.parametrize(
    "text",
    ["", "*", ".localhost", "a.localhost", "localhost.", "localhost:80", "[127.0.0.1]", "[]", "[::1", "10.0.0.1"],
)
def test_other_hosts(text: str) -> None:
    assert not is_loopback_host(text)
