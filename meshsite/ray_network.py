"""Whether heads and the nodes on a cluster's machines may and can speak to each other: asked before anything starts."""

from __future__ import annotations

from collections.abc import Sequence

from meshsite.engine import EngineRefused
from nodes.errors import OutsideNetworks
from nodes.networks import NodeNetworks, as_address, make_url


def check_network(
    addresses: Sequence[str], *, head_host: str, own_address: str, networks: Sequence[str], plain_http: bool
) -> None:
    """`addresses` are where nodes will be, `own_address` is this machine's in the cluster, `networks` and `plain_http`
    are MESHNET_NODE_NETWORKS and MESHNET_PLAIN_HTTP. Raises EngineRefused that names all that is to be set.
    """
    beyond = [address for address in addresses if not _is_loopback(address)]
    wanted = []
    if beyond and _is_loopback(head_host):
        wanted.append(f"--host {own_address}, since the nodes cannot reach a head on {head_host}")
    outside = [address for address in addresses if not _holds(networks, address)]
    if outside:
        held = [*networks, *(_network_of(address) for address in outside)]
        wanted.append(f"MESHNET_NODE_NETWORKS={','.join(held)}, or networks that hold these")
    if (beyond or not _is_loopback(head_host)) and not plain_http:
        wanted.append("MESHNET_PLAIN_HTTP=true, if it is a network that you trust")
    if wanted:
        raise EngineRefused(f"The nodes of this Ray cluster are at {', '.join(addresses)}. Set {'; '.join(wanted)}.")


def _holds(networks: Sequence[str], address: str) -> bool:
    try:
        NodeNetworks(networks, plain_http=True).check(make_url("http", address, 80))
    except OutsideNetworks:
        return False
    return True


def _network_of(address: str) -> str:
    found = as_address(address)
    return f"{address}/{128 if found is not None and found.version == 6 else 32}"


def _is_loopback(host: str) -> bool:
    address = as_address(host)
    return host == "localhost" if address is None else address.is_loopback
