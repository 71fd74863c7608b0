"""Which addresses and names are this machine's own and nobody else's."""

from __future__ import annotations

import ipaddress


def is_loopback_address(text: str) -> bool:
    """Whether it is an address of the loopback interface; IPv4 within IPv6 counts as IPv4."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return address.is_loopback


def is_loopback_host(text: str) -> bool:
    """Whether a host, as URLs and Host headers write it and without a port, can only be this machine."""
    if text.startswith("[") and text.endswith("]"):
        return ":" in text and is_loopback_address(text[1:-1])
    # Names under localhost are the resolver's to keep here (RFC 6761), and not every resolver does: the name alone.
    return text.lower() == "localhost" or is_loopback_address(text)
