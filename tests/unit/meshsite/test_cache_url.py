from __future__ import annotations

import runpy
import socket
from typing import Any

import pytest
from django.core.cache.backends.redis import RedisCache
from django.core.exceptions import ImproperlyConfigured
from django.views.debug import get_default_exception_reporter_filter
from redis import Redis

from meshsite.cache_url import check_cache_url
from meshsite.gunicorn_conf import SPARE_THREADS
from tests.processes import ROOT

WORD = "pa55word"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "redis://cache.example.org",
        f"redis://:{WORD}@10.0.0.7:6379/3",
        f"rediss://user:{WORD}%2F@[fd00::7]:6380/0?ssl_ca_certs=/etc/meshnet/ca.pem",
    ],
)
def test_urls_of_a_redis_are_taken(url: str) -> None:
    check_cache_url(url)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (f"http://:{WORD}@cache.example.org", "is not the URL of a Redis"),
        (f"unix:///{WORD}", "is not the URL of a Redis"),
        (f"redis://:{WORD}/6379", "cannot be read"),
        (f"redis://:{WORD}@cache.example.org:99999", "cannot be read"),
        (f"redis://:{WORD}@", "is not the URL of a Redis"),
        (f"redis://:{WORD}@cache.example.org/zero", "the number of a database"),
        (f"redis://cache.example.org/0?password={WORD}", "options that are not known"),
        (f"redis://:{WORD}@cache.example.org/0?ssl_ca_certs=/ca.pem", "write rediss://"),
    ],
)
def test_others_are_refused_by_what_is_wrong_and_not_repeated(url: str, said: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=said) as caught:
        check_cache_url(url)
    assert str(caught.value).startswith("MESHNET_CACHE_URL ")
    assert WORD not in str(caught.value)


@pytest.fixture
def settings_with(monkeypatch: pytest.MonkeyPatch) -> Any:
    def load(url: str) -> dict[str, Any]:
        monkeypatch.setenv("MESHNET_CACHE_URL", url)
        return runpy.run_path(str(ROOT / "meshsite" / "settings.py"))

    return load


def test_without_one_nothing_is_shared(settings_with: Any) -> None:
    assert set(settings_with("")["CACHES"]) == {"default"}


def test_djangos_default_cache_does_not_depend_on_redis_and_what_is_read_from_it_is_json(settings_with: Any) -> None:
    caches = settings_with("redis://cache.example.org")["CACHES"]
    assert caches["default"]["BACKEND"] == "django.core.cache.backends.locmem.LocMemCache"
    assert caches["shared"]["OPTIONS"]["serializer"] == "nodes.shared_snapshots.JsonSerializer"


def test_each_thread_of_a_worker_may_speak_to_redis_at_once(
    settings_with: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESHNET_MAX_ANSWERS", "300")
    found = settings_with("redis://cache.example.org")
    # Threads of requests, and of answers, whose leases are given back at the end.
    assert found["CACHE_CONNECTION"]["max_connections"] >= 2 * 300 + SPARE_THREADS
    shared = found["CACHES"]["shared"]
    limits = Redis.from_url(shared["LOCATION"], **found["CACHE_CONNECTION"]).connection_pool
    looks = RedisCache(shared["LOCATION"], shared)._cache._get_connection_pool(write=True)
    assert limits.max_connections == looks.max_connections == found["CACHE_CONNECTION"]["max_connections"]


def test_a_connection_to_redis_that_was_cut_off_in_silence_is_noticed(settings_with: Any) -> None:
    options = settings_with("redis://cache.example.org")["CACHE_CONNECTION"]
    with socket.create_server(("127.0.0.1", 0)) as server:
        limits = Redis.from_url(f"redis://127.0.0.1:{server.getsockname()[1]}", **options)
        with limits.connection_pool.make_connection()._connect() as made:
            assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 60


def test_a_debug_page_shows_no_part_of_it(settings: Any) -> None:
    settings.MESHNET_CACHE_URL = f"redis://:{WORD}@cache.example.org"
    settings.CACHES = {**settings.CACHES, "shared": {"LOCATION": settings.MESHNET_CACHE_URL}}
    shown = get_default_exception_reporter_filter().get_safe_settings()
    assert shown["MESHNET_CACHE_URL"] == shown["CACHES"]["shared"]["LOCATION"] == shown["SECRET_KEY"]
    assert WORD not in str(shown)


def test_a_wrong_one_stops_the_process(settings_with: Any) -> None:
    with pytest.raises(ImproperlyConfigured):
        settings_with("cache.example.org:6379")
