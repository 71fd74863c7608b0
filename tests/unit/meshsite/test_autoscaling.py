from __future__ import annotations

from collections.abc import Iterable

import pytest

from meshsite.autoscaling import DOWN_SECONDS, FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, UP_SECONDS, Autoscaling, Load

#: More than four replicas hold.
BUSY = Load(waiting=30, running=8, slots=8)
CALM = Load(waiting=0, running=1, slots=8)
LOOK = 2.0


class Mesh:
    """A mesh that does at once what the policy says, in looks of LOOK seconds."""

    def __init__(self, policy: Autoscaling, replicas: int = 1) -> None:
        self.policy = policy
        self.replicas = replicas
        self.now = 1000.0
        self.changes: list[tuple[float, int]] = []

    def live(self, loads: Iterable[Load | None]) -> None:
        for load in loads:
            wanted = self.policy.decide(self.now, self.replicas, load)
            if wanted != self.replicas:
                self.changes.append((self.now - 1000.0, wanted))
                self.replicas = wanted
            self.now += LOOK


def looks(seconds: float) -> int:
    return int(seconds / LOOK) + 1


def test_up_by_one_once_something_has_waited_for_ten_seconds_in_a_row() -> None:
    mesh = Mesh(Autoscaling(1, 4))
    mesh.live([BUSY] * looks(UP_SECONDS - LOOK))
    assert mesh.changes == []
    mesh.live([BUSY])
    assert mesh.changes == [(UP_SECONDS, 2)]


def test_a_single_look_without_a_queue_begins_the_counting_anew() -> None:
    mesh = Mesh(Autoscaling(1, 4))
    mesh.live(([BUSY] * looks(UP_SECONDS - LOOK) + [CALM]) * 20)
    assert mesh.changes == []


def test_the_next_step_up_needs_the_whole_time_again_and_ends_at_the_bound() -> None:
    mesh = Mesh(Autoscaling(1, 3))
    mesh.live([BUSY] * 100)
    assert [replicas for _, replicas in mesh.changes] == [2, 3]
    assert mesh.changes[1][0] - mesh.changes[0][0] >= UP_SECONDS


def test_down_by_one_after_five_minutes_in_which_one_fewer_would_have_done() -> None:
    mesh = Mesh(Autoscaling(1, 4), replicas=3)
    mesh.live([CALM] * looks(DOWN_SECONDS - LOOK))
    assert mesh.changes == []
    mesh.live([CALM] * looks(2 * DOWN_SECONDS + 10))
    assert [replicas for _, replicas in mesh.changes] == [2, 1]
    assert mesh.changes[1][0] - mesh.changes[0][0] >= DOWN_SECONDS


@pytest.mark.parametrize(("running", "wanted"), [(6, 1), (7, 2)])
def test_no_more_than_three_quarters_of_the_remaining_places_may_be_taken(running: int, wanted: int) -> None:
    mesh = Mesh(Autoscaling(1, 2), replicas=2)
    mesh.live([Load(0, running, 8)] * looks(DOWN_SECONDS + LOOK))
    assert mesh.replicas == wanted


def test_generations_that_have_a_place_and_only_begin_bring_no_replica() -> None:
    mesh = Mesh(Autoscaling(1, 4))
    mesh.live([Load(waiting=3, running=5, slots=8)] * looks(10 * UP_SECONDS))
    assert mesh.changes == []
    mesh.live([Load(waiting=4, running=5, slots=8)] * looks(UP_SECONDS))
    assert mesh.replicas == 2


def test_where_the_bytes_of_a_node_are_taken_before_its_places_what_waits_brings_one_too() -> None:
    mesh = Mesh(Autoscaling(1, 4))
    mesh.live([Load(waiting=1, running=2, slots=8, cache=0.7)] * looks(10 * UP_SECONDS))
    assert mesh.changes == []
    mesh.live([Load(waiting=1, running=2, slots=8, cache=0.8)] * looks(UP_SECONDS))
    assert mesh.replicas == 2


@pytest.mark.parametrize(("waiting", "wanted"), [(1, 1), (6, 1), (7, 2)])
def test_generations_that_begin_at_every_look_count_as_those_that_run_and_no_more(waiting: int, wanted: int) -> None:
    mesh = Mesh(Autoscaling(1, 2), replicas=2)
    mesh.live([Load(waiting, 0, 8)] * looks(DOWN_SECONDS + LOOK))
    assert mesh.replicas == wanted


@pytest.mark.parametrize("peak", [Load(6, 1, 8), Load(0, 8, 8), Load(1, 1, 8, cache=1.0), None])
def test_one_peak_or_one_blind_look_puts_the_step_down_off(peak: Load | None) -> None:
    mesh = Mesh(Autoscaling(1, 2), replicas=2)
    mesh.live(([CALM] * looks(DOWN_SECONDS - 2 * LOOK) + [peak]) * 5)
    assert mesh.replicas == 2


def test_where_the_places_are_not_known_running_generations_keep_every_replica() -> None:
    mesh = Mesh(Autoscaling(1, 2), replicas=2)
    mesh.live([Load(0, 1, 0)] * looks(2 * DOWN_SECONDS))
    assert mesh.replicas == 2


def test_it_never_goes_below_its_least_and_comes_up_to_it_at_once() -> None:
    policy = Autoscaling(2, 4)
    mesh = Mesh(policy, replicas=2)
    mesh.live([CALM] * looks(3 * DOWN_SECONDS))
    assert mesh.replicas == 2
    policy.least = 3
    mesh.live([None])
    assert mesh.replicas == 3


@pytest.mark.parametrize("period", [4, 10, 30, 100, 290, 310, 700])
def test_however_the_load_swings_steps_down_are_five_minutes_apart(period: int) -> None:
    mesh = Mesh(Autoscaling(1, 4))
    wave = [BUSY] * (period // 2) + [CALM] * (period // 2)
    mesh.live(wave * (4000 // period))
    downs = [at for (_, before), (at, after) in zip(mesh.changes, mesh.changes[1:], strict=False) if after < before]
    ups_and_downs = [at for at, _ in mesh.changes]
    for down in downs:
        assert down - max(at for at in ups_and_downs if at < down) >= DOWN_SECONDS


def test_a_step_up_that_failed_is_tried_again_after_longer_and_longer_pauses() -> None:
    policy, now, pauses = Autoscaling(1, 4), 1000.0, []
    for _ in range(8):
        policy.failed(now)
        failed_at = now
        while policy.decide(now, 1, BUSY) == 1:
            now += LOOK
        pauses.append(now - failed_at)
    assert pauses[0] == FIRST_PAUSE_SECONDS
    assert pauses[1:3] == [2 * FIRST_PAUSE_SECONDS, 4 * FIRST_PAUSE_SECONDS]
    assert pauses[-1] == LONGEST_PAUSE_SECONDS
    policy.worked()
    policy.failed(now)
    assert policy.decide(now + FIRST_PAUSE_SECONDS - 1, 0, None) == 0
    assert policy.decide(now + FIRST_PAUSE_SECONDS, 0, None) == 1
