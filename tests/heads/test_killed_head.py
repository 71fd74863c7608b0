"""One of several heads behind nginx is killed: it costs its own answers, and nothing of the others'."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from tests import processes
from tests import redis_server as redis_servers
from tests.heads.test_nginx import error_of
from tests.heads.two_heads import LONG, TwoHeads, head
from tests.nginx import running_nginx
from tests.processes import wait_until


@LONG
def test_a_head_that_is_killed_costs_its_own_answers_no_post_runs_twice_and_what_it_held_is_free(
    two_heads: TwoHeads, tmp_path: Path
) -> None:
    redis_servers.need("nginx", "nginx")
    prefix, key = two_heads.keys["of a killed head"]
    lives = two_heads.heads[0]
    doomed = head(tmp_path / "doomed", two_heads.mesh, two_heads.cluster, two_heads.server)
    answers: list[Any] = []
    with (
        processes.serving(doomed),
        running_nginx([doomed.port, lives.port]) as url,
        two_heads.mesh.proxy.slowed(0.02),
        two_heads.stream(lives.url, key=key) as goes_on,
    ):
        assert goes_on.text_event()
        ((session, owner),) = two_heads.running()
        with two_heads.mesh.proxy.holding():
            client = threading.Thread(target=lambda: answers.append(two_heads.ask(url, key=key)))
            client.start()
            wait_until(lambda: len(two_heads.running()) == 2, 20)
            lost, dead = two_heads.running()[0]
            assert dead != owner, "nginx gives it to the first, which has nothing to do"
            before = two_heads.generations()
            doomed.kill()
            client.join(20)
            ((status, _, _),) = answers
            problem = error_of(answers[0])
            assert (status, problem["type"], problem["code"]) == (502, "server_error", "bad_gateway")
            assert two_heads.generations() == before, "the proxy sent it once more"
            assert two_heads.ask(url, key=key)[0] == 429, "of its two slots one is held until it was silent for long"
            two_heads.bury(dead)
            wait_until(lambda: two_heads.status(lost) == "interrupted", 15)
            assert two_heads.status(session) == "running"
        statuses = [two_heads.ask(url, key=key)[0] for _ in range(6)]
        assert statuses == [200] * 6, "requests go to the head that is left, and one slot is free"
        assert [lease.partition(":")[0] for lease in two_heads.leases(prefix)] == [owner]
        assert goes_on.rest()[-1] == "data: [DONE]"
    two_heads.evict()
