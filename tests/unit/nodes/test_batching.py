from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nodes.batching import MOST_SESSIONS, Budget, pick
from nodes.layers import LayerRange

ALL, PART = LayerRange(0, 4), LayerRange(0, 2)
BUDGET = Budget(alone=100, beside=10)


@dataclass
class Waiting:
    left: int
    is_decode: bool = False
    layers: LayerRange = ALL
    session_id: str = field(default_factory=lambda: secrets.token_hex(8))


def decode(layers: LayerRange = ALL, **known: Any) -> Waiting:
    return Waiting(1, is_decode=True, layers=layers, **known)


def test_all_steps_of_one_token_run_together() -> None:
    assert pick([decode(), decode(), decode()], BUDGET, answers_run=True) == [(0, 1), (1, 1), (2, 1)]


def test_a_prompt_alone_runs_in_large_pieces_and_beside_answers_in_small_ones() -> None:
    assert pick([Waiting(300)], BUDGET, answers_run=False) == [(0, 100)]
    assert pick([Waiting(300)], BUDGET, answers_run=True) == [(0, 10)]
    assert pick([Waiting(300), decode()], BUDGET, answers_run=False) == [(0, 10), (1, 1)]


def test_prompts_share_the_budget_in_the_order_of_their_coming() -> None:
    assert pick([Waiting(6), Waiting(3), Waiting(50)], BUDGET, answers_run=True) == [(0, 6), (1, 3), (2, 1)]
    assert pick([Waiting(60), Waiting(3)], BUDGET, answers_run=True) == [(0, 10)]


def test_only_steps_of_the_same_layers_run_together_and_the_oldest_says_which() -> None:
    waiting = [decode(PART), decode(), decode(PART), Waiting(5)]
    assert pick(waiting, BUDGET, answers_run=True) == [(0, 1), (2, 1)]
    assert pick(waiting[1:], BUDGET, answers_run=True) == [(0, 1), (2, 5)]


def test_d10_of_one_session_one_step_runs_at_a_time_and_in_order() -> None:
    waiting = [decode(session_id="a"), decode(session_id="b"), decode(session_id="a"), Waiting(5, session_id="b")]
    assert pick(waiting, BUDGET, answers_run=True) == [(0, 1), (1, 1)]
    other = [decode(PART, session_id="a"), decode(ALL, session_id="a")]
    assert pick(other, BUDGET, answers_run=True) == [(0, 1)]


WAITING = st.lists(
    st.one_of(
        st.builds(decode, st.sampled_from([ALL, PART])),
        st.builds(Waiting, st.integers(1, 300), layers=st.sampled_from([ALL, PART])),
    ),
    min_size=1,
    max_size=100,
)


@given(WAITING, st.booleans())
def test_the_oldest_always_runs_and_nobody_gets_more_than_is_left(waiting: list[Waiting], answers_run: bool) -> None:
    picked = pick(waiting, BUDGET, answers_run=answers_run)
    places = [place for place, _ in picked]
    assert places == sorted(set(places))
    assert all(1 <= tokens <= waiting[place].left for place, tokens in picked)
    assert len({waiting[place].layers for place in places}) == 1
    prompts = [tokens for place, tokens in picked if not waiting[place].is_decode]
    assert sum(prompts) <= (BUDGET.alone if len(prompts) == len(picked) else BUDGET.beside)
    assert len(picked) - len(prompts) <= MOST_SESSIONS
    assert places[0] == 0 or (waiting[0].is_decode and places.index(0) == 0)


@given(WAITING, st.booleans())
def test_every_step_ends_after_a_bounded_number_of_turns(waiting: list[Waiting], answers_run: bool) -> None:
    left = [Waiting(one.left, one.is_decode, one.layers, one.session_id) for one in waiting]
    for _ in range(sum(one.left for one in waiting)):
        if not left:
            break
        for place, tokens in pick(left, BUDGET, answers_run=answers_run):
            left[place].left -= tokens
        left = [one for one in left if one.left]
    assert left == []
