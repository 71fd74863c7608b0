"""What must hold over two heads that share a database and a Redis, without anything that ties a client to a head."""

from __future__ import annotations

import json
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from tests import processes
from tests.heads.two_heads import TwoHeads
from tests.processes import wait_until


def test_f03_requests_per_minute_hold_exactly_over_both_heads(two_heads: TwoHeads) -> None:
    _, key = two_heads.keys["seven a minute"]
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
    prefix, key = two_heads.keys["three at once"]
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
    prefix, key = two_heads.keys["a day"]
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
    two_heads.query("UPDATE generation_apikey SET tokens_per_day = 10 WHERE prefix = %s RETURNING id", prefix)
    for one in two_heads.heads:
        status, _, body = two_heads.ask(one.url, key=key)
        assert (status, json.loads(body)["error"]["code"]) == (429, "insufficient_quota")


def test_an_answer_of_one_head_is_cancelled_from_the_other(two_heads: TwoHeads) -> None:
    runs, other = two_heads.heads
    with two_heads.mesh.proxy.slowed(0.05), two_heads.stream(runs.url, tokens=400) as stream:
        assert stream.text_event()
        ((session, _),) = two_heads.running()
        ((number,),) = two_heads.query("SELECT id FROM generation_generation WHERE session_id = %s", session)
        form = {"generation": number, "confirmed": "yes"}
        assert two_heads.page(f"{other.url}/admin/generation/generation/cancel/", form)[0] == 200
        last = stream.rest()[-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "cancelled"
    wait_until(lambda: two_heads.status(session) == "cancelled", 10)


def test_after_an_eviction_at_one_head_the_next_page_of_the_other_shows_it(two_heads: TwoHeads) -> None:
    evicts, other = (f"{one.url}/admin/nodes/kvsession" for one in two_heads.heads)
    with two_heads.mesh.proxy.slowed(0.02), two_heads.stream(two_heads.heads[0].url) as stream:
        assert stream.text_event()
        ((session, _),) = two_heads.running()
        with two_heads.mesh.proxy.holding():  # it does not come back before it is let go on
            wait_until(lambda: session in two_heads.page(f"{other}/data.json")[1], 10)
            form = {"session": session, "confirmed": "yes"}
            assert two_heads.page(f"{evicts}/evict/", form)[0] == 200
            assert session not in two_heads.page(f"{other}/data.json")[1]
        assert stream.rest()[-1] == "data: [DONE]"


def test_without_redis_keys_without_limits_go_on_and_the_others_are_told_to_come_again(two_heads: TwoHeads) -> None:
    _, key = two_heads.keys["without Redis"]
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
