"""The soak in short: clients that know their answers, on a mesh that is broken at random."""

from __future__ import annotations

import pytest

from tests.chaos.chat import Answer
from tests.chaos.load import judge
from tests.chaos.mesh import ChaosMesh
from tests.chaos.model import Reference
from tests.chaos.soak import Soak


def test_every_answer_is_right_or_a_clean_error_while_nodes_come_and_go(mesh: ChaosMesh, reference: Reference) -> None:
    soak = Soak(mesh, reference, clients=8, seed=5, questions=6)
    report = soak.run(6, pause=0.3, warm_up=1)
    assert report.problems == []
    assert report.endings["right"] > 5
    assert len(report.events) > 1


def answer(text: str, **fields: object) -> Answer:
    made = Answer(200, {}, pieces=[(0.0, text)], completion_tokens=3, finish_reason="length", is_whole=True)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


NO_ROUTE = [{"code": "no_route"}]
CUT = {"is_whole": False, "completion_tokens": None}


@pytest.mark.parametrize(
    ("given", "ending"),
    [
        (answer("abc"), "right"),
        (answer("ab", errors=NO_ROUTE, **CUT), "error no_route"),
        (answer("", errors=NO_ROUTE, status=503, headers={"retry-after": "5"}, **CUT), "error no_route"),
    ],
)
def test_a_right_answer_and_a_clean_error_are_no_problem(given: Answer, ending: str) -> None:
    assert judge(given, "abcdef", 3, None) == (ending, "")


@pytest.mark.parametrize(
    "given",
    [
        answer("aabc"),
        answer("ac"),
        answer("abcd"),
        answer("abc", is_whole=False),
        answer("abc", completion_tokens=2),
        answer("ac", errors=NO_ROUTE, **CUT),
        answer("ab", errors=[{"code": "internal"}], **CUT),
        answer("ab", errors=NO_ROUTE, is_whole=True),
        answer("", errors=NO_ROUTE, status=503, **CUT),
        answer("", errors=NO_ROUTE, status=502, headers={"retry-after": "5"}, **CUT),
    ],
)
def test_every_other_answer_is_a_problem(given: Answer) -> None:
    assert judge(given, "abcdef", 3, None)[1]


def test_a_client_that_goes_away_must_have_got_a_beginning() -> None:
    assert judge(answer("ab", **CUT), "abcdef", 3, 2) == ("client gone", "")
    assert judge(answer("ac", **CUT), "abcdef", 3, 2)[1]
