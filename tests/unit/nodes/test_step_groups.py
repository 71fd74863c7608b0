from __future__ import annotations

from nodes.step_groups import MOST_SECONDS, PATIENCE, TURNS, StepGroups


def test_a_session_that_ran_by_itself_never_waits() -> None:
    groups = StepGroups()
    assert groups.patience("a", {"a"}) == 0
    groups.ran(["a"], 0.02)
    groups.ran(["b", "c"], 0.02)
    assert groups.patience("a", {"a"}) == 0


def test_the_first_of_a_group_waits_for_the_others_until_all_are_here() -> None:
    groups = StepGroups()
    groups.ran(["a", "b", "c"], 0.02)
    assert groups.patience("b", {"b"}) == groups.patience("b", {"b", "a", "x"}) == PATIENCE * 0.02
    assert groups.patience("b", {"b", "a", "c"}) == 0


def test_a_long_turn_is_no_reason_to_wait_long() -> None:
    groups = StepGroups()
    groups.ran(["a", "b"], 30.0)
    assert groups.patience("a", {"a"}) == MOST_SECONDS


def test_only_the_newest_turn_of_a_session_counts() -> None:
    groups = StepGroups()
    groups.ran(["a", "b"], 0.02)
    groups.ran(["a"], 0.02)
    assert groups.patience("a", {"a"}) == 0
    assert groups.patience("b", {"b"}) > 0, "it does not know yet that the other goes its own way"


def test_old_turns_and_turns_of_prompts_alone_are_no_groups() -> None:
    groups = StepGroups()
    groups.ran(["a", "b"], 0.02)
    for _ in range(TURNS):
        groups.ran([], 0.5)
    assert groups.patience("a", {"a"}) > 0
    for _ in range(TURNS):
        groups.ran(["c"], 0.02)
    assert groups.patience("a", {"a"}) == 0
