"""The Ray engine of a mesh that is about to start: connects, and refuses what could not work beyond this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from meshsite.engine import EngineRefused, Say
from meshsite.ray_cluster import RayCluster
from meshsite.ray_engine import RayEngine
from meshsite.ray_network import check_network


def start_ray_engine(
    address: str,
    *,
    folder: Path,
    var_dir: Path,
    head_host: str,
    networks: Sequence[str],
    plain_http: bool,
    environ: Mapping[str, str],
    say: Say,
) -> RayEngine:
    """On the cluster at `address`, or the one that RAY_ADDRESS names, or one that is started here for this mesh alone.

    Raises EngineRefused, having left the cluster.
    """
    address = address or environ.get("RAY_ADDRESS", "")
    say(f"Connecting to the Ray cluster {address} …" if address else "Starting Ray on this machine …")
    cluster = RayCluster.connect(address)
    try:
        engine = RayEngine(cluster, folder, var_dir, say)
        check_network(
            engine.addresses,
            head_host=head_host,
            own_address=cluster.address_here,
            networks=networks,
            plain_http=plain_http,
        )
    except EngineRefused:
        cluster.close()
        raise
    return engine
