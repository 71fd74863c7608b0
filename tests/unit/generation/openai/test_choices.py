"""Several answers to one request, read as one."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from generation import answer as answers
from generation.answer import ChatRequest, Finished, Silence, TextDelta
from generation.errors import Cancelled, NoRoute
from generation.openai import choices
from generation.openai.choices import Choices, Usage
from nodes.errors import Busy, Draining, NodeTimeout
from tests.processes import wait_until

from .conftest import CHAT, MODEL, PARIS, FakeAnswer, FakeHead

REQUEST = ChatRequest(model=MODEL, messages=CHAT["messages"])


def merged(*scripts: tuple[Any, ...], n: int | None = None) -> Choices:
    made: list[Any] = [FakeAnswer(script) for script in scripts]
    together = Choices(made[0], n=n or len(made), total=len(made), id="chatcmpl-1", fingerprint="fp_1")
    together.begin = lambda index: made[index]
    return together


def start(head: Any, *, n: int = 1, requests: list[ChatRequest] | None = None) -> Choices:
    return choices.start(
        head,
        requests or [REQUEST],
        n=n,
        prefix="chatcmpl",
        api_key=None,
        streamed=False,
        client_gone=lambda: False,
    )


@pytest.mark.parametrize("seed", [None, 7, -1])
def test_the_answers_have_one_seed_and_differ_by_their_number(head: FakeHead, seed: int | None) -> None:
    list(start(head, n=3, requests=[ChatRequest(model=MODEL, messages=CHAT["messages"], seed=seed)]).events())
    asked = [one["request"] for one in head.asked]
    assert [request.choice for request in asked] == [0, 1, 2]
    (found,) = {request.seed for request in asked}
    assert found == seed if seed is not None else 0 <= found < 2**63


def test_a_prompt_counts_with_its_first_answer(head: FakeHead) -> None:
    list(start(head, n=2, requests=[REQUEST, REQUEST]).events())
    assert [one["request"].counts_prompt for one in head.asked] == [True, False, True, False]


def test_without_a_seed_each_request_gets_another(head: FakeHead) -> None:
    start(head)
    start(head)
    first, second = (one["request"].seed for one in head.asked)
    assert first != second


def test_an_answer_has_an_id_that_nobody_can_guess(head: FakeHead) -> None:
    ids = {start(head).id for _ in range(20)}
    assert len(ids) == 20
    assert all(one.startswith("chatcmpl-") and len(one) > 25 for one in ids)


def test_the_fingerprint_tells_models_and_number_formats_apart(head: FakeHead) -> None:
    first = start(head).fingerprint
    assert start(head).fingerprint == first
    head.settings.dtype = "bfloat16"
    second = start(head).fingerprint
    head.settings.fingerprint = "f2"
    assert len({first, second, start(head).fingerprint}) == 3


def test_events_of_all_come_in_the_order_of_each() -> None:
    together = merged(
        (TextDelta("a"), TextDelta("b"), Finished("stop", 7, 2)),
        (TextDelta("c"), Finished("length", 7, 1)),
    )
    events = list(together.events())
    assert [event for index, event in events if index == 0] == [
        TextDelta("a"),
        TextDelta("b"),
        Finished("stop", 7, 2),
    ]
    assert [event for index, event in events if index == 1] == [TextDelta("c"), Finished("length", 7, 1)]


def test_one_choice_does_not_wait_for_another() -> None:
    read = threading.Event()
    together = merged((lambda: read.wait(30), Finished("stop", 1, 0)), (TextDelta("a"), Finished("stop", 1, 1)))
    events = together.events()
    assert next(events) == (1, TextDelta("a"))
    read.set()
    assert {index for index, _ in events} == {0, 1}


def test_usage_counts_each_prompt_once_and_all_that_was_generated() -> None:
    together = merged(*[(Finished("stop", prompt, 10),) for prompt in (7, 7, 5, 5)], n=2)
    assert together.usage() == Usage(0, 0)
    list(together.events())
    assert together.usage() == Usage(12, 40)


def test_the_silence_of_one_is_enough_for_all() -> None:
    first = threading.Event()
    together = merged(
        (Silence(), first.wait, Silence(), Finished("stop", 1, 0)),
        (Silence(), Silence(), first.set, Finished("stop", 1, 0)),
    )
    silent = [index for index, event in together.events() if isinstance(event, Silence)]
    assert silent.count(0) == 2
    assert silent.count(1) <= 2


def test_the_first_error_of_any_ends_all() -> None:
    for error in (NodeTimeout(), RuntimeError("a bug")):
        together = merged((TextDelta("a"), Finished("stop", 1, 1)), (error,))
        with pytest.raises(type(error)):
            list(together.events())


@pytest.mark.parametrize("count", [1, 2])
def test_one_that_was_ended_early_is_not_taken_for_whole(count: int) -> None:
    with pytest.raises(Cancelled):
        list(merged(*[(TextDelta("a"),)] * count).events())


def test_a_first_answer_that_is_refused_is_refused_as_it_is(head: FakeHead) -> None:
    head.refusal = NoRoute()
    with pytest.raises(NoRoute):
        start(head, n=3)
    assert len(head.asked) == 1


def test_only_the_first_has_begun_when_the_status_is_decided(head: FakeHead) -> None:
    together = start(head, n=3)
    assert len(head.made) == 1
    assert {index for index, _ in together.events()} == {0, 1, 2}
    assert len(head.made) == 3


def test_a_later_one_that_is_refused_ends_all(head: FakeHead) -> None:
    head.refusals = {3: Draining()}
    head.script = (Silence(), lambda: wait_until(lambda: head.made[0].cancelled, 10, "not cancelled"))
    together = start(head, n=4)
    with pytest.raises(Draining):
        list(together.events())
    together.cancel()
    assert [one.cancelled for one in head.made] == [1, 1]
    assert len(head.asked) == 3


def test_a_mesh_with_one_slot_answers_them_one_after_the_other(head: FakeHead, monkeypatch: pytest.MonkeyPatch) -> None:
    def start_when_free(runtime: Any, request: ChatRequest, **options: Any) -> FakeAnswer:
        if not all(one.is_over for one in head.made):
            raise Busy()
        return head.start(runtime, request, **options)

    monkeypatch.setattr(answers, "start", start_when_free)
    events = list(start(head, n=3).events())
    assert [index for index, event in events if isinstance(event, Finished)] == [0, 1, 2]
    assert [one["request"].choice for one in head.asked] == [0, 1, 2]


def test_a_mesh_that_is_full_of_others_is_busy_for_a_later_choice_too(head: FakeHead) -> None:
    head.refusals = dict.fromkeys(range(2, 100), Busy())
    with pytest.raises(Busy):
        list(start(head, n=2).events())


def test_cancel_reaches_every_answer_that_has_begun_and_no_other_begins(head: FakeHead) -> None:
    head.script = (Silence(), lambda: wait_until(lambda: head.made[0].cancelled, 10, "not cancelled"))
    head.refusals = dict.fromkeys(range(3, 100), Busy())  # the third waits
    together = start(head, n=3)
    events = together.events()
    next(events)
    wait_until(lambda: len(head.asked) >= 3, 10, "the third was not tried")
    together.cancel()
    assert [one.cancelled for one in head.made] == [1, 1]
    with pytest.raises(Cancelled):
        list(events)
    assert len(head.made) == 2


def test_one_that_begins_while_all_are_cancelled_is_cancelled_too(head: FakeHead) -> None:
    together = start(head, n=2)
    late = FakeAnswer(PARIS)

    def begin(index: int) -> Any:
        together.cancel()
        return late

    together.begin = begin
    list(together.events())
    assert (head.made[0].cancelled, late.cancelled) == (1, 1)


def test_who_waits_for_slots_learns_that_the_answer_was_cancelled(head: FakeHead, monkeypatch: Any) -> None:
    gone: list[Any] = []

    def begin(runtime: Any, request: ChatRequest, *, client_gone: Any, **options: Any) -> Any:
        gone.append(client_gone)
        return FakeAnswer(PARIS)

    monkeypatch.setattr(answers, "start", begin)
    together = start(head, n=2)
    list(together.events())
    assert [ask() for ask in gone] == [False, False]
    together.cancel()
    assert gone[1]()
