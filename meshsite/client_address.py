"""Where a request comes from, for the limit to tries at the admin's login. Headers are believed of proxies only."""

from __future__ import annotations

import ipaddress

from django.conf import settings
from django.http import HttpRequest

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

#: Whoever has one IPv6 address has all of its network.
IPV6_PREFIX = 64


def client_address(request: HttpRequest) -> str:
    """The address that tries are counted for: of IPv6 the network of 64 bits.

    A peer among FORWARDED_ALLOW_IPS is a proxy: then it is the last address of X-Forwarded-For, which the proxy itself
    wrote. What stands before that, and the header from any other peer, is whatever the client liked to write.
    """
    peer = _parsed(request.META.get("REMOTE_ADDR", ""))
    # gunicorn's peers without an address stand at a Unix socket: proxies, as it sees them.
    if peer is None or _is_proxy(peer):
        peer = _parsed(request.headers.get("X-Forwarded-For", "").rpartition(",")[2].strip()) or peer
    if isinstance(peer, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((peer, IPV6_PREFIX), strict=False).network_address)
    return str(peer or "0.0.0.0")  # noqa: S104  # the row needs one


def _is_proxy(peer: Address) -> bool:
    return any(peer in ipaddress.ip_network(network) for network in settings.FORWARDED_ALLOW_IPS)


def _parsed(text: str) -> Address | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return (address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None) or address
