from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from nodes import announcer as module
from nodes.announcement import Announcement
from nodes.announcer import (
    BEAT_JITTER,
    FAILURE_JITTER,
    LONGEST_PAUSE_SECONDS,
    Announcer,
    HeadVoice,
    describe,
    start_announcing,
)
from nodes.errors import MeshnetError, NodeTimeout, NotVerified
from nodes.kv_sessions import StoreLimits
from nodes.layers import LayerRange
from tests.meshes import running_nodes
from tests.processes import wait_until
from tests.unit.nodes.announced import BOOT, announcement


class FakeHead:
    """Hears announcements; `errors` are raised first, one after the other."""

    def __init__(self, url: str = "http://head:1", *, errors: list[MeshnetError] | None = None) -> None:
        self.url = url
        self.heard: list[dict[str, Any]] = []
        self.errors = list(errors or [])
        self.answer: dict[str, Any] = {"url": "http://node:1", "beat_seconds": 5.0}
        self.hangs = threading.Event()
        self.hangs.set()

    def announce(self, body: dict[str, Any], *, timeout: float) -> dict[str, Any]:
        assert self.hangs.wait(10)
        self.heard.append(body)
        if self.errors:
            raise self.errors.pop(0)
        return self.answer

    @property
    def states(self) -> list[str]:
        return [body["state"] for body in self.heard]


def voice(head: FakeHead, seconds: float = 5.0) -> HeadVoice:
    return HeadVoice(head, announcement, seconds)


def test_a_head_is_told_what_the_node_is() -> None:
    head = FakeHead()
    assert voice(head).speak() == 5.0
    assert [Announcement.from_json(body) for body in head.heard] == [announcement()]


@pytest.mark.parametrize(("asked", "pause"), [(1.0, 1.0), (60.0, 5.0), (0, 0.5), (None, 5.0), ("x", 5.0), (True, 5.0)])
def test_a_head_may_ask_for_a_quicker_beat(asked: Any, pause: float) -> None:
    head = FakeHead()
    head.answer["beat_seconds"] = asked
    assert voice(head).speak() == pause


def test_a_silent_head_is_tried_again_soon_and_then_more_seldom() -> None:
    head = FakeHead(errors=[NodeTimeout("silent") for _ in range(20)])
    speaking = voice(head)
    pauses = [speaking.speak() for _ in range(20)]
    assert pauses[:4] == [0.5, 1.0, 2.0, 4.0]
    assert set(pauses[5:]) == {LONGEST_PAUSE_SECONDS}
    assert speaking.speak() == 5.0
    head.errors = [NodeTimeout("silent")]
    assert speaking.speak() == 0.5, "the row began anew"


def test_nodes_that_began_together_come_apart() -> None:
    def pauses(seed: int) -> list[float]:
        head = FakeHead(errors=[NodeTimeout("silent") for _ in range(3)])
        speaking = HeadVoice(head, announcement, 5.0, rng=random.Random(seed))  # noqa: S311
        return [speaking.turn() for _ in range(4)]

    some, others = pauses(1), pauses(2)
    assert all(one != other for one, other in zip(some, others, strict=True))
    for one in (*zip(some, (0.5, 1.0, 2.0, 5.0), strict=True), *zip(others, (0.5, 1.0, 2.0, 5.0), strict=True)):
        assert one[1] * (1 - (BEAT_JITTER if one[1] == 5.0 else FAILURE_JITTER)) <= one[0] <= one[1]


def test_a_slow_beat_is_not_made_quicker_by_a_failure() -> None:
    head = FakeHead(errors=[NodeTimeout("silent") for _ in range(20)])
    speaking = voice(head, 60.0)
    assert max(speaking.speak() for _ in range(20)) == 60.0


def test_what_changes_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    refusal = "http://head:1: Set MESHNET_URL."
    head = FakeHead(
        errors=[NotVerified(refusal), NotVerified(refusal), NodeTimeout("no answer"), NodeTimeout("no answer")]
    )
    speaking = voice(head)
    with caplog.at_level(logging.INFO, logger="nodes.announcer"):
        for _ in range(8):
            speaking.speak()
    assert caplog.messages == [
        f"http://head:1 refuses this node: {refusal}",
        "http://head:1 does not hear this node: no answer",
        "http://head:1 knows this node as http://node:1.",
    ]


def test_a_silent_head_delays_no_other_and_ends_nothing() -> None:
    silent, other = FakeHead("http://silent:1"), FakeHead()
    silent.hangs.clear()
    announcer = Announcer([silent, other], announcement, 0.5)
    announcer.start()
    wait_until(lambda: len(other.heard) >= 2)
    assert silent.heard == []
    silent.hangs.set()
    announcer.say_goodbye()


def test_a_change_is_told_at_once() -> None:
    state = ["ready"]
    head = FakeHead()
    announcer = Announcer([head], lambda: announcement(state=state[0]), 3600)
    announcer.start()
    wait_until(lambda: head.states == ["ready"])
    state[0] = "draining"
    announcer.announce_now()
    wait_until(lambda: head.states == ["ready", "draining"])
    announcer.say_goodbye()


def test_good_bye_is_said_once_to_all_and_is_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    heads = [FakeHead("http://a:1"), FakeHead("http://b:1", errors=[NodeTimeout("x")]), FakeHead("http://c:1")]
    announcer = Announcer(heads, announcement, 3600)
    announcer.start()
    wait_until(lambda: all(head.heard for head in heads))
    announcer.say_goodbye()
    announcer.say_goodbye()
    announcer.announce_now()
    assert [head.states[-1] for head in heads] == 3 * ["leaving"]
    wait_until(lambda: not any(voice._thread.is_alive() for voice in announcer._voices))
    assert [head.states.count("leaving") for head in heads] == [1, 1, 1]


def test_good_bye_comes_after_a_beat_that_is_under_way() -> None:
    head = FakeHead()
    head.hangs.clear()
    announcer = Announcer([head], announcement, 3600)
    announcer.start()
    wait_until(lambda: announcer._voices[0]._speaking.locked())
    leaving = threading.Thread(target=announcer.say_goodbye)
    leaving.start()
    head.hangs.set()
    leaving.join(10)
    assert head.states == ["ready", "leaving"]


def test_good_bye_does_not_wait_for_a_silent_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GOODBYE_SECONDS", 0.05)
    silent, other = FakeHead("http://silent:1"), FakeHead()
    silent.hangs.clear()
    Announcer([silent, other], announcement, 3600).say_goodbye()
    wait_until(lambda: other.states == ["leaving"])
    assert silent.heard == []
    silent.hangs.set()


def test_a_late_refusal_of_a_leaving_node_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    head = FakeHead(errors=[NotVerified("This node has said good-bye.")])
    speaking = voice(head)
    speaking.stop()
    speaking.speak()
    assert caplog.messages == []


def test_an_error_of_our_own_does_not_end_the_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_PAUSE_SECONDS", 0.01)
    head, calls = FakeHead(), []

    def stumble() -> Announcement:
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("a bug")
        return announcement()

    announcer = Announcer([head], stumble, 3600)
    announcer.start()
    wait_until(lambda: head.states == ["ready"])
    announcer.say_goodbye()


def test_a_node_describes_itself_as_it_is_now(toy_folder: Callable[[str], Any]) -> None:
    with running_nodes(toy_folder("llama"), [LayerRange(1, 3)], limits=StoreLimits(max_sessions=5)) as [runtime]:
        said = describe(runtime, url="", scheme="http", port=8001)
        assert Announcement.from_json(said.as_json()) == said
        assert (said.model, said.fingerprint, said.layers, said.n_layers) == ("toy", "toy@1", LayerRange(1, 3), 4)
        assert (said.max_sessions, said.sessions, said.bytes, said.state) == (5, 0, 0, "ready")
        runtime.drain()
        assert describe(runtime, url="https://node", scheme="http", port=0).state == "draining"


def test_draining_and_undraining_hurries_the_announcement(toy_folder: Callable[[str], Any]) -> None:
    with running_nodes(toy_folder("llama"), [LayerRange(0, 1)]) as [runtime]:
        changes: list[bool] = []
        runtime.state_changed = lambda: changes.append(runtime.is_draining)
        runtime.drain()
        runtime.undrain()
        assert changes == [True, False]


def test_a_node_without_heads_announces_nothing(settings: Any) -> None:
    settings.MESHNET_HEADS = []
    assert start_announcing(None, 8001) is None  # type: ignore[arg-type]


def test_a_node_without_a_port_needs_a_url(settings: Any, caplog: pytest.LogCaptureFixture) -> None:
    settings.MESHNET_HEADS = ["http://127.0.0.1:8000"]
    assert start_announcing(None, 0) is None  # type: ignore[arg-type]
    assert "set MESHNET_URL" in caplog.text


def test_boot_ids_of_nodes_are_what_heads_take() -> None:
    assert announcement(boot_id=BOOT).boot_id == BOOT
