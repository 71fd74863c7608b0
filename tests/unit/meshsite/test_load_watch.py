from __future__ import annotations

import pytest

from meshsite.autoscaling import Load
from meshsite.load_watch import STALE_SECONDS, LoadWatch, load_of
from tests.conftest import Clock

ONE = """
# HELP meshnet:num_requests_running Generations that hold their slots.
# TYPE meshnet:num_requests_running gauge
meshnet:num_requests_running{model_name="m"} 5.0
# TYPE meshnet:num_requests_waiting gauge
meshnet:num_requests_waiting{model_name="m"} 2.0
# TYPE meshnet:kv_sessions_limit gauge
meshnet:kv_sessions_limit{node="http://a"} 8.0
meshnet:kv_sessions_limit{node="http://b"} 6.0
# TYPE meshnet:kv_cache_usage_perc gauge
meshnet:kv_cache_usage_perc{node="http://a",model_name="m"} 0.25
meshnet:kv_cache_usage_perc{node="http://b",model_name="m"} 0.5
"""
OTHER = """
# TYPE meshnet:num_requests_running gauge
meshnet:num_requests_running{model_name="m"} 1.0
# TYPE meshnet:num_requests_waiting gauge
meshnet:num_requests_waiting{model_name="m"} 0.0
# TYPE meshnet:kv_sessions_limit gauge
meshnet:kv_sessions_limit{node="http://a"} 8.0
"""


def test_the_heads_add_up_and_a_replica_holds_what_its_narrowest_node_does() -> None:
    assert load_of([ONE, OTHER]) == Load(waiting=2, running=6, slots=6, cache=0.5)


def test_heads_that_say_nothing_have_no_load_and_no_places() -> None:
    assert load_of([""]) == Load(0, 0, 0)


class Heads:
    def __init__(self, **texts: str) -> None:
        self.texts = texts

    def scrape(self, url: str) -> str:
        if url not in self.texts:
            raise ConnectionRefusedError(url)
        return self.texts[url]


def test_what_was_seen_last_counts_for_a_while(clock: Clock) -> None:
    watch = LoadWatch(["one"], [].append, scrape=Heads(one=ONE).scrape, clock=clock)
    assert watch.latest() is None
    watch.look()
    clock.advance(STALE_SECONDS - 1)
    assert watch.latest() == Load(2, 5, 6, 0.5)
    clock.advance(1)
    assert watch.latest() is None


def test_a_head_that_does_not_answer_makes_the_whole_unknown(clock: Clock) -> None:
    heads = Heads(one=ONE, two=OTHER)
    said: list[str] = []
    watch = LoadWatch(["one", "two"], said.append, scrape=heads.scrape, clock=clock)
    watch.look()
    assert watch.latest() is not None
    del heads.texts["two"]
    watch.look()
    watch.look()
    assert watch.latest() is None
    assert said == ["Autoscaling does nothing while a head does not say what waits: two"]


def test_once_it_is_stopped_heads_that_are_gone_are_no_news(clock: Clock) -> None:
    said: list[str] = []
    watch = LoadWatch(["one"], said.append, scrape=Heads().scrape, clock=clock)
    watch.stop()
    watch.look()
    assert said == []
    assert watch.latest() is None


@pytest.mark.parametrize("text", ["<html>", ONE.replace(" 2.0", " +Inf"), ONE.replace(" 2.0", " NaN")])
def test_what_is_no_exposition_makes_it_unknown_too(clock: Clock, text: str) -> None:
    watch = LoadWatch(["one"], [].append, scrape=Heads(one=text).scrape, clock=clock)
    watch.look()
    assert watch.latest() is None
