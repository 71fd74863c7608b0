from __future__ import annotations

import pytest

from nodes import wire
from nodes.errors import BadRequest
from nodes.wire import StepHeaders, Timings

SESSION = "s" * 22


def test_headers_survive_the_way_there_and_back() -> None:
    sent = StepHeaders(SESSION, "decode", 12, 2, 4, "toy@1")
    assert StepHeaders.from_http(sent.to_http()) == sent


def test_absent_headers_mean_a_stateless_step_of_the_whole_shard() -> None:
    assert StepHeaders.from_http({}) == StepHeaders()
    assert StepHeaders().to_http() == {}


@pytest.mark.parametrize(
    ("headers", "named"),
    [
        ({wire.CACHE: "prefill"}, wire.SESSION),
        ({wire.SESSION: SESSION, wire.CACHE: "decode"}, wire.PAST_LEN),
        ({wire.SESSION: SESSION, wire.CACHE: "prefill", wire.PAST_LEN: "3"}, wire.PAST_LEN),
        ({wire.PAST_LEN: "3"}, wire.PAST_LEN),
        ({wire.SESSION: SESSION, wire.CACHE: "append"}, wire.CACHE),
        ({wire.SESSION: SESSION, wire.CACHE: "decode", wire.PAST_LEN: "-1"}, wire.PAST_LEN),
        ({wire.SESSION: SESSION, wire.CACHE: "decode", wire.PAST_LEN: "1.0"}, wire.PAST_LEN),
        ({wire.SESSION: SESSION, wire.CACHE: "decode", wire.PAST_LEN: "\u0661"}, wire.PAST_LEN),
        ({wire.SESSION: SESSION, wire.CACHE: "decode", wire.PAST_LEN: "1" * 10}, wire.PAST_LEN),
        ({wire.START_LAYER: "two"}, wire.START_LAYER),
        ({wire.END_LAYER: ""}, wire.END_LAYER),
        ({wire.MODEL: "two words"}, wire.MODEL),
        ({wire.SESSION: "short"}, wire.SESSION),
        ({wire.SESSION: "../" * 10}, wire.SESSION),
        ({wire.SESSION: "<script>alert(1)</script>"}, wire.SESSION),
        ({wire.SESSION: SESSION + "\x00"}, wire.SESSION),
        ({wire.SESSION: SESSION + "\n"}, wire.SESSION),
    ],
)
def test_a_malformed_header_is_refused_by_name(headers: dict[str, str], named: str) -> None:
    with pytest.raises(BadRequest, match=named):
        StepHeaders.from_http(headers)


@pytest.mark.parametrize("name", [wire.SESSION, wire.CACHE, wire.PAST_LEN, wire.START_LAYER])
def test_e05_two_headers_of_one_name_arrive_joined_and_are_refused(name: str) -> None:
    good = {wire.SESSION: SESSION, wire.CACHE: "decode", wire.PAST_LEN: "12", wire.START_LAYER: "0"}
    StepHeaders.from_http(good)
    with pytest.raises(BadRequest, match=name):
        StepHeaders.from_http({**good, name: f"{good[name]},{good[name]}"})


def test_d10_session_ids_do_not_repeat_and_follow_their_grammar() -> None:
    ids = {wire.mint_session_id() for _ in range(10_000)}
    assert len(ids) == 10_000
    assert all(wire.is_session_id(value) for value in ids)


def test_timings_survive_and_malformed_ones_count_as_zero() -> None:
    assert Timings.from_http(Timings(1.25, 30.5).to_http()) == Timings(1.25, 30.5)
    assert Timings.from_http("nonsense;;dur=x") == Timings()
    assert Timings.from_http(None) == Timings()
