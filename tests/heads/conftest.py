"""Two heads on one PostgreSQL and one Redis over the toy mesh, and nginx before them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests import redis_server as redis_servers
from tests.heads.two_heads import TwoHeads, running_heads
from tests.nginx import running_nginx
from tests.postgres import Cluster
from tests.processes import wait_until
from tests.redis_server import Server
from tests.toy_mesh import ToyMesh


@pytest.fixture(scope="session")
def heads_of_the_run(
    toy_mesh: ToyMesh, postgres: Cluster, redis_server: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TwoHeads]:
    with running_heads(toy_mesh, postgres, redis_server, tmp_path_factory.mktemp("heads")) as heads:
        yield heads
    for head in heads.heads:
        log = head.log.read_text()
        assert "failed:" not in log, "a keeper's round failed"
        assert redis_servers.PASSWORD not in log


@pytest.fixture
def two_heads(heads_of_the_run: TwoHeads) -> TwoHeads:
    """With nothing running: rows end just after their answers."""
    wait_until(lambda: not heads_of_the_run.running(), 15, "a generation of the test before still runs")
    return heads_of_the_run


@pytest.fixture(scope="session")
def proxy(heads_of_the_run: TwoHeads) -> Iterator[str]:
    """The URL of nginx, as the example configures it."""
    redis_servers.need("nginx", "nginx")
    with running_nginx([head.port for head in heads_of_the_run.heads]) as url:
        yield url
