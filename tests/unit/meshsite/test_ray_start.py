"""Which cluster a mesh joins, and that it leaves one that it cannot use."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from meshsite import ray_start
from meshsite.engine import EngineRefused
from meshsite.ray_cluster import HOW_TO_GET_IT, RayCluster, RayMachine
from meshsite.ray_host import OWN_RAY
from meshsite.ray_places import Room
from meshsite.ray_start import start_ray_engine


class FakeCluster:
    address_here = "10.0.0.1"

    def __init__(self, *addresses: str) -> None:
        self.found = [RayMachine(address, address, address, Room(8, 0, 2**30)) for address in addresses]
        self.asked: list[str] = []
        self.is_closed = False

    def connect(self, address: str) -> FakeCluster:
        self.asked.append(address)
        return self

    def machines(self) -> list[RayMachine]:
        return self.found

    def close(self) -> None:
        self.is_closed = True


def start(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, address: str = "", **environ: str) -> list[str]:
    """What it says on the way."""
    said: list[str] = []
    monkeypatch.setattr(ray_start, "RayCluster", cluster)
    networks: Sequence[str] = ["127.0.0.0/8"]
    start_ray_engine(
        address,
        folder=Path("/project"),
        var_dir=Path("/var"),
        head_host="127.0.0.1",
        networks=networks,
        plain_http=False,
        environ=environ,
        say=said.append,
    )
    return said


@pytest.mark.parametrize(
    ("address", "environ", "joined", "said"),
    [
        ("", {}, "", "Starting Ray on this machine …"),
        ("", {"RAY_ADDRESS": "10.0.0.9:6379"}, "10.0.0.9:6379", "Connecting to the Ray cluster 10.0.0.9:6379 …"),
        ("auto", {"RAY_ADDRESS": "10.0.0.9:6379"}, "auto", "Connecting to the Ray cluster auto …"),
    ],
)
def test_it_joins_the_cluster_that_is_named_and_else_starts_one(
    monkeypatch: pytest.MonkeyPatch, address: str, environ: dict[str, str], joined: str, said: str
) -> None:
    cluster = FakeCluster("10.0.0.1")
    assert start(cluster, monkeypatch, address, **environ) == [said]
    assert cluster.asked == [joined]
    assert not cluster.is_closed


def test_a_cluster_that_the_mesh_cannot_use_is_left_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster("10.0.0.1", "10.0.0.2")
    with pytest.raises(EngineRefused, match=r"--host 10\.0\.0\.1"):
        start(cluster, monkeypatch)
    assert cluster.is_closed


@pytest.mark.parametrize("address", ["local", "ray://10.0.0.1:10001", "10.0.0.1", ":6379", "10.0.0.1:x"])
def test_what_is_not_the_address_of_a_cluster_is_refused(address: str) -> None:
    with pytest.raises(EngineRefused, match=r"name a Ray cluster as host:port"):
        RayCluster.connect(address)


@pytest.mark.parametrize("port", [1, 99999])
def test_where_nobody_listens_is_said_at_once(port: int) -> None:
    with pytest.raises(EngineRefused, match=f"The Ray cluster 127.0.0.1:{port} cannot be used: nobody answers there"):
        RayCluster.connect(f"127.0.0.1:{port}")


def test_without_ray_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in OWN_RAY:  # which it sets, and this takes back
        monkeypatch.setenv(name, "")
    nothing: Any = None
    monkeypatch.setitem(sys.modules, "ray", nothing)
    with pytest.raises(EngineRefused) as refused:
        RayCluster.connect("")
    assert str(refused.value) == HOW_TO_GET_IT
