"""What must hold over two heads that share a database and a Redis, without anything that ties a client to a head."""

from __future__ import annotations

import json
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests import processes
from tests.heads.two_heads import TwoHeads, head
from tests.processes import wait_until


def test_f03_requests_per_minute_hold_exactly_over_both_heads(two_heads: TwoHeads) -> None:
    _, key = two_heads.new_key(requests_per_minute=7)
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda n: two_heads.ask(two_heads.heads[n % 2].url, key=key), range(20)))
    assert Counter(status for status, _, _ in answers) == {200: 7, 429: 13}
    left = sorted(
        int(headers["x-ratelimit-remaining-requests"]) for status, headers, _ in answers if status == 200
    )  # fmt: skip
    assert left == [0, 1, 2, 3, 4, 5, 6]
    for status, headers, body in answers:
        if status == 429:
            assert json.loads(body)["error"]["code"] == "rate_limit_exceeded"
            assert 1 <= int(headers["retry-after"]) <= 60


def test_f03_generations_at_once_hold_over_both_heads_and_end_with_their_answers(two_heads: TwoHeads) -> None:
    prefix, key = two_heads.new_key(concurrent_generations=3)
    statuses: list[int] = []

    def ask(number: int) -> None:
        statuses.append(two_heads.ask(two_heads.heads[number % 2].url, key=key, stream=True)[0])

    with two_heads.mesh.proxy.holding():
        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(statuses) == 5, 30)
        assert (set(statuses), len(two_heads.leases(prefix))) == ({429}, 3)
    for thread in threads:
        thread.join()
    assert Counter(statuses) == {200: 3, 429: 5}
    for number in range(4):  # one after the other: each finds its slot free
        ask(number)
    assert statuses[8:] == [200] * 4
    assert two_heads.leases(prefix) == []


def test_what_both_heads_generated_adds_up_and_uses_up_the_day_for_both(two_heads: TwoHeads) -> None:
    prefix, key = two_heads.new_key(tokens_per_day=1000)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: two_heads.ask(two_heads.heads[n % 2].url, key=key), range(8)))
    used = sum(json.loads(body)["usage"]["total_tokens"] for _, _, body in answers)

    def counted() -> bool:
        sums = two_heads.query(
            "SELECT sum(requests), sum(prompt_tokens + completion_tokens) FROM generation_keyusage "
            "WHERE api_key_id LIKE %s",
            f"{prefix}.%",
        )
        return sums == [(8, used)]

    wait_until(counted, 10)

    def remaining(url: str) -> int:
        _, headers, _ = processes.call(f"{url}/v1/models", headers={"Authorization": f"Bearer {key}"})
        return int(headers["x-ratelimit-remaining-tokens"])

    for one in two_heads.heads:
        wait_until(lambda one=one: remaining(one.url) == 1000 - used, 10)  # type: ignore[misc]
    # As if Redis had just been started: what was used today is in the database.
    with two_heads.redis() as redis:
        redis.flushall()
    assert [remaining(one.url) for one in two_heads.heads] == [1000 - used] * 2
    processes.in_django(
        two_heads.heads[0],
        f"from generation.models import APIKey\nAPIKey.objects.filter(prefix={prefix!r}).update(tokens_per_day=10)\n",
    )
    for one in two_heads.heads:
        status, _, body = two_heads.ask(one.url, key=key)
        assert (status, json.loads(body)["error"]["code"]) == (429, "insufficient_quota")


def test_an_answer_of_one_head_is_cancelled_from_the_other(two_heads: TwoHeads) -> None:
    runs, other = two_heads.heads
    with two_heads.mesh.proxy.slowed(0.05), two_heads.stream(runs.url, tokens=400) as stream:
        assert stream.text_event()
        ((session, _),) = two_heads.running()
        asked = processes.in_django(
            other,
            "from generation.cancel import request_cancel\nfrom generation.models import Generation\n"
            f"result = len(request_cancel(Generation.objects.filter(session_id={session!r})))\n",
        )
        assert asked == 1
        last = stream.rest()[-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "cancelled"
    wait_until(lambda: two_heads.status(session) == "cancelled", 10)


def test_what_a_killed_head_held_is_free_and_the_others_answers_go_on(two_heads: TwoHeads, tmp_path: Path) -> None:
    """Time is moved on by hand: 30 s in which the dead one gave no sign in the database and none in Redis."""
    prefix, key = two_heads.new_key(concurrent_generations=2)
    lives = two_heads.heads[0]
    doomed = head(tmp_path / "doomed", two_heads.mesh, two_heads.cluster, two_heads.server)
    with (
        processes.serving(doomed),
        two_heads.mesh.proxy.slowed(0.02),
        two_heads.stream(lives.url, key=key) as goes_on,
    ):
        assert goes_on.text_event()
        ((session, owner),) = two_heads.running()
        with two_heads.mesh.proxy.holding():
            cut_off: list[int] = []

            def ask() -> None:
                try:
                    two_heads.ask(doomed.url, key=key)
                except OSError:
                    cut_off.append(1)

            client = threading.Thread(target=ask)
            client.start()
            wait_until(lambda: len(two_heads.running()) == 2, 20)
            (lost, dead) = two_heads.running()[0]
            assert dead != owner
            doomed.kill()
            client.join(20)
            assert cut_off
            assert two_heads.ask(lives.url, key=key)[0] == 429, "its slot is held until it was silent for long enough"
            with two_heads.redis() as redis:
                entry = f"meshnet:limits:{{{prefix}}}:leases"
                for lease in two_heads.leases(prefix):
                    if lease.startswith(dead):
                        redis.zincrby(entry, -30_000_000, lease)
            two_heads.query(
                "UPDATE generation_headworker SET beat_at = beat_at - interval '31 seconds' WHERE boot_id = %s "
                "RETURNING id",
                dead,
            )
            wait_until(lambda: two_heads.status(lost) == "interrupted", 15)
            assert two_heads.status(session) == "running"
            assert [lease.partition(":")[0] for lease in two_heads.leases(prefix) if not lease.startswith(dead)] == [
                owner
            ]
        assert two_heads.ask(lives.url, key=key)[0] == 200, "one slot is free, the other held"
        assert goes_on.rest()[-1] == "data: [DONE]"
    two_heads.evict()


def test_without_redis_keys_without_limits_go_on_and_the_others_are_told_to_come_again(two_heads: TwoHeads) -> None:
    _, key = two_heads.new_key(requests_per_minute=1000)
    for one in two_heads.heads:
        assert two_heads.ask(one.url, key=key)[0] == 200
    two_heads.server.stop()
    try:
        for one in two_heads.heads:
            status, headers, body = two_heads.ask(one.url, key=key)
            assert (status, json.loads(body)["error"]["code"]) == (503, "limits_unavailable")
            assert headers["retry-after"] == "1"
            assert two_heads.ask(one.url)[0] == 200
    finally:
        two_heads.server.start()
    for one in two_heads.heads:
        assert two_heads.ask(one.url, key=key)[0] == 200, "without a restart of the head"
