"""Where a process of the mesh may connect to: the mesh secret goes with every request, so not just anywhere.

A URL is judged twice. `check` refuses what can be told from its text; `addresses` resolves a name at the moment of
connecting and gives only addresses that are allowed, so that a name that has changed its address in between (DNS
rebinding) takes the secret nowhere else.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from nodes.errors import BadRequest, NodeUnreachable, OutsideNetworks

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

#: Longest URL that is looked at, as in the table of nodes.
LONGEST_URL = 200
#: ASCII labels. An underscore is not in the rules for host names, but container networks use it.
_NAME = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9_-]{1,63}(?<!-))*\.?")
#: `127.1`, `2130706433` and `0x7f.1` are addresses to the resolver, and names to whoever reads them.
_NUMBER = re.compile(r"\d+|0[xX][0-9A-Fa-f]*")


class NodeNetworks:
    """Networks that may be connected to. Never changes; threads may share one.

    Without `plain_http`, unencrypted connections go to this machine only. Link-local, multicast and unspecified
    addresses are never allowed, whatever the networks say. Raises ValueError for a network that is none.
    """

    def __init__(self, networks: Sequence[str], *, plain_http: bool) -> None:
        self._networks = tuple(ipaddress.ip_network(text) for text in networks)
        self._plain_http = plain_http

    @classmethod
    def from_settings(cls) -> NodeNetworks:
        """What the settings allow for nodes."""
        from django.conf import settings

        return cls(settings.MESHNET_NODE_NETWORKS, plain_http=settings.MESHNET_PLAIN_HTTP)

    @classmethod
    def for_heads(cls) -> NodeNetworks:
        """What the settings allow for heads: they may be anywhere, since the node's own operator named them."""
        from django.conf import settings

        return cls(("0.0.0.0/0", "::/0"), plain_http=settings.MESHNET_PLAIN_HTTP)

    def check(self, url: str) -> None:
        """Raises BadRequest for what is not `http(s)://host[:port]`, and OutsideNetworks (one of them) for a host
        that is a literal address where no connection may go. Resolves nothing.
        """
        scheme, host, _ = split_url(url)
        address = as_address(host)
        if address is not None:
            reason = self._refusal(address, tls=scheme == "https")
            if reason:
                raise OutsideNetworks(f"{url}: {reason}")

    def addresses(self, host: str, port: int, *, tls: bool) -> list[tuple[socket.AddressFamily, Any]]:
        """Family and socket address of each allowed address of the host, in the resolver's order.

        Blocks while the resolver works. Raises NodeUnreachable when the name has no address, or no allowed one.
        """
        try:
            found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise NodeUnreachable(f"The name {host} has no address: {error}.") from None
        allowed: list[tuple[socket.AddressFamily, Any]] = []
        refusal = "there is no address."
        for family, _, _, _, sockaddr in found:
            address = as_address(str(sockaddr[0]))
            reason = "it has an address that cannot be understood." if address is None else self._refusal(address, tls)
            if reason:
                refusal = reason
            elif (family, sockaddr) not in allowed:
                allowed.append((family, sockaddr))
        if not allowed:
            raise NodeUnreachable(f"No connection to {host}:{port}: {refusal}")
        return allowed

    def _refusal(self, address: Address, tls: bool) -> str:
        """Why no connection may go to this address; empty when one may."""
        if address.is_link_local or address.is_multicast or address.is_unspecified:
            return f"{address} is link-local, multicast or unspecified: no node can be there."
        if not any(address in network for network in self._networks):
            return f"{address} is outside the networks of nodes. Set MESHNET_NODE_NETWORKS to one that holds it."
        if not tls and not self._plain_http and not address.is_loopback:
            return (
                f"plain HTTP to {address} would show the mesh secret and the texts to the network. Use https://, or "
                "set MESHNET_PLAIN_HTTP=true in a network that you trust."
            )
        return ""


def split_url(url: str) -> tuple[str, str, int]:
    """Scheme, host (an IPv6 address without brackets) and port of a node's or head's URL. Raises BadRequest.

    A slash at the end is let through; user, path, query and fragment are not.
    """
    bad = BadRequest(f"{url!r:.200} is not http://host:port or https://host:port.")
    # urlsplit itself drops tabs, line ends and spaces, which would then be missing from what was looked at.
    if len(url) > LONGEST_URL or not url.isascii() or not url.isprintable() or re.search(r"[\s\\?#@%]", url):
        raise bad
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise bad from None
    if parts.scheme not in ("http", "https") or parts.path not in ("", "/") or port == 0:
        raise bad
    if as_address(host) is None:
        last = host.rstrip(".").rpartition(".")[2]
        if "[" in parts.netloc or not _NAME.fullmatch(host) or _NUMBER.fullmatch(last):
            raise bad
    return parts.scheme, host, port or (443 if parts.scheme == "https" else 80)


def normal_url(url: str) -> str:
    """The one way in which a URL is written, so that a node has one row. Raises BadRequest."""
    scheme, host, port = split_url(url)
    return make_url(scheme, host, port)


def make_url(scheme: str, host: str, port: int) -> str:
    """`scheme://host:port`, an IPv6 address in brackets, the scheme's own port left out."""
    address = as_address(host)
    name = host.lower() if address is None else f"[{address}]" if address.version == 6 else str(address)
    return f"{scheme}://{name}" if port == (443 if scheme == "https" else 80) else f"{scheme}://{name}:{port}"


def url_at(scheme: str, address: str, port: int) -> str:
    """The URL of what was heard from this address. Raises BadRequest when it is none (of a Unix socket)."""
    if as_address(address) is None:
        raise BadRequest("The address of this node cannot be seen: set MESHNET_URL (make node URL=…).")
    return make_url(scheme, address, port)


def as_address(text: str) -> Address | None:
    """The literal address, an IPv4 one that is written as IPv6 taken for what it is; None for a name."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
