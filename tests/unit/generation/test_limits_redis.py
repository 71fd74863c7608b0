"""What is Redis's own: it forgets, it goes away, and it holds no secret."""

from __future__ import annotations

import logging
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from generation import limits_leases, limits_redis
from generation.errors import LimitsUnavailable, QuotaExceeded, RateLimitExceeded
from generation.key_usage import add_usage, day_of
from generation.limits import Level, Standing
from generation.limits_redis import YOUNG, RedisKeyLimits
from generation.models import APIKey
from tests.certificates import Authority
from tests.processes import free_port, wait_until
from tests.redis_server import PASSWORD, Server, running_redis
from tests.unit.generation.counting import ME, OTHER, InRedis, key
from tests.unit.generation.wall_clock import NOON, WallClock

pytestmark = pytest.mark.django_db


@pytest.fixture
def client(redis_server: Server) -> Iterator[Redis]:
    with redis_server.client() as client:
        client.flushdb()
        yield client


@pytest.fixture
def counting(client: Redis) -> InRedis:
    return InRedis(client)


@pytest.fixture
def limits(counting: InRedis) -> RedisKeyLimits:
    worker = counting.worker()
    assert isinstance(worker, RedisKeyLimits)
    return worker


def add(row: APIKey, tokens: int) -> None:
    add_usage(row.pk, day_of(NOON), requests=1, prompt_tokens=tokens, completion_tokens=0)


def test_without_a_clock_the_time_is_redis_own_and_threads_that_race_get_exactly_the_limit(client: Redis) -> None:
    limits, row, counts = RedisKeyLimits(client), key(requests_per_minute=21), Counter[str]()

    def ask() -> None:
        for _ in range(4):
            try:
                limits.admit(row, owner=ME)
                counts["admitted"] += 1
            except RateLimitExceeded:
                counts["refused"] += 1

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == {"admitted": 21, "refused": 43}
    level = limits.standing(row).requests
    assert level is not None and 50 < level.reset_seconds <= 60


def test_nothing_in_redis_tells_a_key_or_its_hash(limits: RedisKeyLimits, client: Redis) -> None:
    row, secret = APIKey.objects.create_key(
        name="app", requests_per_minute=5, concurrent_generations=5, tokens_per_day=5
    )
    limits.admit(row, owner=ME)
    names = [str(name) for name in client.scan_iter()]
    assert sorted(names) == [f"meshnet:limits:{{{row.prefix}}}:{what}" for what in ("leases", "requests", "tokens")]
    held = " ".join([*names, *map(str, client.zrange(sorted(names)[0], 0, -1))])
    assert str(secret).partition(".")[2] not in held
    assert row.hashed_key not in held


def test_every_entry_goes_by_itself(limits: RedisKeyLimits, client: Redis) -> None:
    limits.admit(key(requests_per_minute=5, concurrent_generations=5, tokens_per_day=5), owner=ME)
    ends = {str(name).rpartition(":")[2]: client.pttl(name) for name in client.scan_iter()}
    assert {name: 0 < end <= 60_000 for name, end in ends.items()} == dict.fromkeys(
        ("requests", "leases", "tokens"), True
    )


# -- a Redis that forgets


def test_leases_come_back_with_the_next_renewal(limits: RedisKeyLimits, counting: InRedis) -> None:
    row = key(concurrent_generations=1)
    admission = limits.admit(row, owner=ME)
    counting.redis.flushdb()
    limits.leases.renew()
    with pytest.raises(RateLimitExceeded):
        counting.worker(OTHER).admit(row, owner=OTHER)
    limits.give_back(admission)
    counting.worker(OTHER).admit(row, owner=OTHER)


def test_tokens_of_the_day_are_what_the_database_says(limits: RedisKeyLimits, counting: InRedis) -> None:
    row = key(tokens_per_day=100)
    add(row, 70)
    limits.used(row, day_of(NOON))
    counting.redis.flushdb()
    assert limits.admit(row, owner=ME).standing.tokens == Level(100, 30, 12 * 3600)


def test_what_was_never_told_is_read_after_a_minute(limits: RedisKeyLimits, counting: InRedis) -> None:
    row = key(tokens_per_day=100)
    limits.admit(row, owner=ME)
    add(row, 100)  # by a head that did not reach Redis
    counting.wall.now += YOUNG - timedelta(seconds=1)
    limits.admit(row, owner=ME)
    counting.wall.now += timedelta(seconds=1)
    with pytest.raises(QuotaExceeded):
        limits.admit(row, owner=ME)


def test_of_two_that_tell_what_was_used_the_larger_counts_whoever_comes_last(
    limits: RedisKeyLimits, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, said = key(tokens_per_day=100), iter((60, 40))
    monkeypatch.setattr("generation.limits_redis.tokens_used", lambda *_: next(said))
    limits.used(row, day_of(NOON))
    limits.used(row, day_of(NOON))
    assert limits.admit(row, owner=ME).standing.tokens == Level(100, 40, 12 * 3600)


def test_what_is_told_of_yesterday_does_not_hide_today(limits: RedisKeyLimits, counting: InRedis) -> None:
    row = key(tokens_per_day=100)
    counting.wall.now += timedelta(days=1)
    add_usage(row.pk, day_of(counting.wall.now), requests=1, prompt_tokens=90, completion_tokens=0)
    limits.used(row, day_of(counting.wall.now))
    limits.used(row, day_of(NOON))
    assert limits.admit(row, owner=ME).standing.tokens == Level(100, 10, 12 * 3600)


def test_nothing_of_tomorrow_is_told_before_it_is_tomorrow_in_redis(limits: RedisKeyLimits, counting: InRedis) -> None:
    row = key(tokens_per_day=100)
    limits.used(row, day_of(NOON + timedelta(days=1)))
    assert not list(counting.redis.scan_iter())


def test_midnight_between_two_questions_refuses_nobody(
    limits: RedisKeyLimits, counting: InRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, counting.wall.now = key(tokens_per_day=100), NOON + timedelta(hours=11, minutes=59, seconds=59)
    add(row, 100)
    read = limits_redis.tokens_used

    def read_at_midnight(pk: str, day: date) -> int:
        counting.wall.now = NOON + timedelta(hours=12)
        return read(pk, day)

    monkeypatch.setattr(limits_redis, "tokens_used", read_at_midnight)
    assert limits.admit(row, owner=ME).standing.tokens == Level(100, 100, 24 * 3600)


# -- a clock of Redis that is set back


def test_after_redis_clock_was_set_back_requests_count_for_a_minute_and_no_longer(
    limits: RedisKeyLimits, counting: InRedis
) -> None:
    row = key(requests_per_minute=2)
    limits.admit(row, owner=ME)
    counting.wall.advance(10)
    limits.admit(row, owner=ME)
    counting.wall.advance(-3600)
    with pytest.raises(RateLimitExceeded) as caught:
        limits.admit(row, owner=ME)
    assert (caught.value.retry_after, caught.value.standing.requests) == (60, Level(2, 0, 60))
    counting.wall.advance(60)
    assert limits.admit(row, owner=ME).standing.requests == Level(2, 1, 60)


def test_after_redis_clock_was_set_back_leases_of_the_dead_end_and_those_of_the_living_do_not(
    limits: RedisKeyLimits, counting: InRedis
) -> None:
    row, doomed = key(concurrent_generations=2), counting.worker(OTHER)
    limits.admit(row, owner=ME)
    doomed.admit(row, owner=OTHER)
    counting.kill(doomed)
    counting.wall.advance(-3600)
    with pytest.raises(RateLimitExceeded):
        limits.admit(row, owner=ME)
    counting.advance(30)
    limits.admit(row, owner=ME)
    with pytest.raises(RateLimitExceeded):
        limits.admit(row, owner=ME)


def test_after_redis_clock_was_set_back_tokens_are_read_again(limits: RedisKeyLimits, counting: InRedis) -> None:
    row = key(tokens_per_day=100)
    limits.admit(row, owner=ME)
    counting.wall.advance(-3600)
    add(row, 100)  # by a head that did not reach Redis
    with pytest.raises(QuotaExceeded):
        limits.admit(row, owner=ME)


def test_a_lease_that_was_given_back_during_its_renewal_does_not_live_on(
    limits: RedisKeyLimits, counting: InRedis
) -> None:
    row = key(concurrent_generations=1)
    admission, renew = limits.admit(row, owner=ME), limits.leases._renew

    def give_back_first(**call: object) -> object:
        limits.give_back(admission)
        return renew(**call)  # type: ignore[arg-type]

    limits.leases._renew = give_back_first  # type: ignore[assignment]
    limits.leases.renew()
    counting.worker(OTHER).admit(row, owner=OTHER)


def test_what_is_held_is_renewed_by_itself_until_it_is_given_back(
    client: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits_leases, "RENEW_SECONDS", 0.01)
    limits, row = RedisKeyLimits(client), key(concurrent_generations=1)
    admission = limits.admit(row, owner=ME)
    entry = f"meshnet:limits:{{{row.prefix}}}:leases"
    ((lease, first),) = client.zrange(entry, 0, -1, withscores=True)
    for _ in range(2):
        wait_until(lambda first=first: client.zscore(entry, lease) > first, 10)  # type: ignore[misc]
        first = client.zscore(entry, lease)
    limits.give_back(admission)
    wait_until(lambda: limits.leases._thread is None, 10, "a thread stays with nothing to do")
    assert client.zscore(entry, lease) is None


# -- a Redis that is away


def test_a_request_that_cannot_be_counted_is_refused_and_one_of_a_key_without_limits_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nowhere = Redis(port=free_port(), password=PASSWORD, retry=Retry(NoBackoff(), 0), socket_connect_timeout=0.5)
    limits = RedisKeyLimits(nowhere, WallClock())
    row = key(requests_per_minute=5, concurrent_generations=5)
    with caplog.at_level(logging.DEBUG), pytest.raises(LimitsUnavailable) as caught:
        limits.admit(row, owner=ME)
    assert (caught.value.http_status, caught.value.retry_after) == (503, 1)
    assert limits.standing(row) == Standing()
    limits.used(row, day_of(NOON))
    limits.admit(key(), owner=ME)
    assert "its request is refused: ConnectionError" in caplog.text
    assert PASSWORD not in caplog.text


def test_over_tls_one_with_a_certificate_of_another_authority_is_none(redis_server: Server, tmp_path: Path) -> None:
    with running_redis(tmp_path, Authority(tmp_path / "ca")) as server:
        with Redis.from_url(server.url) as client:
            RedisKeyLimits(client, WallClock()).admit(key(requests_per_minute=1), owner=ME)
        url = server.url.replace(str(server.authority.file), str(Authority(tmp_path / "other").file))  # type: ignore[union-attr]
        with Redis.from_url(url, retry=Retry(NoBackoff(), 0)) as client, pytest.raises(LimitsUnavailable):
            RedisKeyLimits(client, WallClock()).admit(key(requests_per_minute=1), owner=ME)


def test_one_that_says_nothing_is_waited_for_no_longer_than_its_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        redis = Redis(port=silent.getsockname()[1], retry=Retry(NoBackoff(), 0), socket_timeout=0.1)
        with pytest.raises(LimitsUnavailable):
            RedisKeyLimits(redis, WallClock()).admit(key(requests_per_minute=1), owner=ME)


def test_f05_a_slot_that_could_not_be_given_back_is_free_with_the_next_request(
    limits: RedisKeyLimits, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = key(concurrent_generations=1)
    admission = limits.admit(row, owner=ME)
    with monkeypatch.context() as patch:
        patch.setattr(Redis, "execute_command", refuse)
        patch.setattr("redis.client.Pipeline.execute", refuse)
        limits.give_back(admission)
    assert limits.leases.left_behind(f"meshnet:limits:{{{row.prefix}}}:leases")
    limits.admit(row, owner=ME)
    assert not limits.leases.left_behind(f"meshnet:limits:{{{row.prefix}}}:leases")


def test_after_a_restart_of_redis_the_same_process_goes_on(redis_server: Server) -> None:
    limits, row = RedisKeyLimits(redis_server.client()), key(requests_per_minute=1)
    limits.admit(row, owner=ME)
    redis_server.stop()
    with pytest.raises(LimitsUnavailable):
        limits.admit(row, owner=ME)
    redis_server.start()
    limits.admit(row, owner=ME)


def refuse(*args: object, **options: object) -> None:
    raise RedisError("away")
