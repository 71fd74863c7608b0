"""An operator watches running answers, evicts one and cancels another, with JavaScript and without."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import openai
import pytest
from playwright.sync_api import Locator, expect

from tests import processes
from tests.browser.conftest import AtWork, Operator
from tests.integration.test_chat import chat, expected_text, joined
from tests.processes import wait_until
from tests.toy_mesh import ToyMesh

SESSIONS = "/admin/nodes/kvsession/"
GENERATIONS = "/admin/generation/generation/"
ANSWER = 120
#: Of each step in seconds while the operator is at work: the answer would take 24 s.
SLOW = 0.2


@pytest.fixture(params=[True, False], ids=["javascript", "no-javascript"])
def javascript(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def only_session(mesh: ToyMesh) -> str:
    def found() -> str | None:
        held = {entry["id"] for listing in mesh.sessions() for entry in listing["sessions"]}
        return held.pop() if len(held) == 1 else None

    return str(wait_until(found, 10, "there is not exactly one session"))


def entries(mesh: ToyMesh, session: str) -> list[dict[str, Any]]:
    return [entry for listing in mesh.sessions() for entry in listing["sessions"] if entry["id"] == session]


def evictions(mesh: ToyMesh) -> list[int]:
    return [listing["stats"]["evictions"]["operator"] for listing in mesh.sessions()]


def logged(mesh: ToyMesh, text: str) -> list[str]:
    """What the admin's history says of things named so."""
    lines: list[str] = processes.in_django(
        mesh.head,
        "from django.contrib.admin.models import LogEntry\n"
        f"result = [entry.get_change_message() for entry in LogEntry.objects.filter(object_repr__contains={text!r})]\n",
    )
    return lines


def rows(operator: Operator, session: str) -> Locator:
    return operator.page.locator(f'[data-testid="session-row"][data-session="{session}"]')


def tokens(operator: Operator, session: str) -> list[int]:
    """Held by each node, as the page says."""
    cells = rows(operator, session).get_by_test_id("cell-tokens")
    return [int(text.split()[0].replace(",", "")) for text in cells.all_inner_texts()]


def age(operator: Operator, session: str) -> float:
    """Seconds, as the page has them from the first node."""
    value = rows(operator, session).first.get_by_test_id("cell-age").get_attribute("data-seconds")
    assert value is not None
    return float(value)


def look_again(operator: Operator, javascript: bool) -> None:
    """Waits for the page to refresh itself, or asks for it where no script does."""
    if javascript:
        live = operator.page.get_by_test_id("mesh-live")
        before = live.get_attribute("data-refreshes")
        expect(live).not_to_have_attribute("data-refreshes", str(before))
    else:
        operator.page.get_by_test_id("refresh").click()


def look_until_both_nodes_hold(operator: Operator, session: str, javascript: bool) -> None:
    def both() -> bool:
        look_again(operator, javascript)
        return rows(operator, session).count() == 2

    wait_until(both, 10, "the page does not show the session on both nodes")


def look_until_none_is_left(operator: Operator, javascript: bool) -> None:
    def none() -> bool:
        look_again(operator, javascript)
        return operator.page.get_by_test_id("no-sessions").is_visible()

    wait_until(none, 10, "the page still shows a session")


def grown(operator: Operator, session: str, javascript: bool, than: list[int]) -> bool:
    look_again(operator, javascript)
    now = tokens(operator, session)
    return len(now) == 2 and all(new > old for new, old in zip(now, than, strict=True))


def test_an_evicted_session_starts_anew_and_its_answer_ends_as_if_nothing_had_happened(
    watched_mesh: ToyMesh, at_work: AtWork, javascript: bool, toy_reference: Any
) -> None:
    mesh = watched_mesh
    undisturbed = expected_text(mesh, toy_reference("llama"), ANSWER)
    wait_until(mesh.is_idle, 5)
    before = evictions(mesh)
    with at_work(mesh.head, javascript=javascript) as operator, ThreadPoolExecutor(1) as reader:
        page = operator.page
        with mesh.proxy.slowed(SLOW):
            stream = chat(mesh, ANSWER, stream=True)
            text: Future[str] = reader.submit(joined, stream)
            session = only_session(mesh)
            operator.go(SESSIONS)
            look_until_both_nodes_hold(operator, session, javascript)
            seen = tokens(operator, session)
            wait_until(lambda: grown(operator, session, javascript, seen), 10, "the tokens do not grow")
            page.get_by_test_id("select-session").check()
            if javascript:
                look_again(operator, javascript)
                expect(page.get_by_test_id("select-session")).to_be_checked()
            page.get_by_test_id("evict-selected").click()
            expect(page.get_by_test_id("confirm-page")).to_be_visible()
            assert evictions(mesh) == before, "asking changes nothing"
            begun = min(entry["created_at"] for entry in entries(mesh, session))
            old = time.time() - begun
            page.get_by_test_id("confirm-submit").click()
            expect(page.locator(".messagelist .success")).to_have_count(2)
            assert [after - old for after, old in zip(evictions(mesh), before, strict=True)] == [1, 1]
            wait_until(
                lambda: len(now := entries(mesh, session)) == 2 and min(entry["created_at"] for entry in now) > begun,
                10,
                "the session did not come back",
            )
            look_until_both_nodes_hold(operator, session, javascript)
            assert age(operator, session) < old
        assert text.result(30) == undisturbed
        assert len(logged(mesh, session)) == 1
        wait_until(mesh.is_idle, 5)
        look_until_none_is_left(operator, javascript)
    (row,) = [row for row in mesh.rows() if row["session_id"] == session]
    assert (row["status"], row["cache_misses"], row["prefills"]) == ("done", 1, 2)


def test_a_cancelled_generation_vanishes_from_the_nodes_and_its_client_is_told(
    watched_mesh: ToyMesh, at_work: AtWork, javascript: bool
) -> None:
    mesh = watched_mesh
    wait_until(mesh.is_idle, 5)

    def read(stream: Any) -> tuple[str, str | None]:
        text = ""
        try:
            for chunk in stream:
                text += chunk.choices[0].delta.content or ""
        except openai.APIError as error:
            return text, error.code
        return text, None

    with at_work(mesh.head, javascript=javascript) as operator, ThreadPoolExecutor(1) as reader:
        page = operator.page
        with mesh.proxy.slowed(SLOW):
            end = reader.submit(read, chat(mesh, ANSWER, stream=True))
            session = only_session(mesh)
            operator.go(SESSIONS)
            look_until_both_nodes_hold(operator, session, javascript)
            page.get_by_test_id("cell-session").get_by_role("link").click()
            page.locator("input.action-select").check()
            page.locator("select[name=action]").select_option(label="Cancel selected generations")
            page.get_by_role("button", name="Go").click()
            expect(page.locator("#generations-to-cancel")).to_contain_text(session)
            assert entries(mesh, session), "asking changes nothing"
            page.get_by_role("button", name="Yes, cancel it").click()
            asked_at = time.monotonic()
            expect(page.locator(".messagelist .success")).to_contain_text("1 generation was told to end")
            text, code = end.result(10)
            assert time.monotonic() - asked_at < 4
        assert (code, bool(text)) == ("cancelled", True)
        wait_until(mesh.is_idle, 5)
        operator.go(SESSIONS)
        look_until_none_is_left(operator, javascript)
        (row,) = [row for row in mesh.rows() if row["session_id"] == session]
        assert row["status"] == "cancelled"
        operator.go(f"{GENERATIONS}{row['id']}/change/")
        expect(page.locator("#generation-timeline svg rect")).to_have_count(2)
        expect(page.locator("#generation-hops svg")).to_have_count(2)
        expect(page.locator("#generation-cancel")).to_have_count(0)
    assert logged(mesh, session[:8]) == ["Cancelled on request."]
