"""Pictures of the pages that operators look at most, for people to look at: var/screenshots/."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import SCREENSHOTS, AtWork
from tests.integration.test_chat import chat
from tests.processes import wait_until
from tests.toy_mesh import ToyMesh


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pages_are_whole_in_light_and_dark(watched_mesh: ToyMesh, at_work: AtWork, theme: str) -> None:
    mesh = watched_mesh
    streams = [chat(mesh, 200, stream=True) for _ in range(3)]
    with at_work(mesh.head, dark=theme == "dark") as operator:
        page = operator.page
        with mesh.proxy.holding():
            operator.go("/admin/nodes/mesh/")
            expect(page.get_by_test_id("node-row")).to_have_count(2)
            expect(page.get_by_test_id("layer-span")).to_have_count(2)
            operator.take(f"overview-{theme}")
            operator.go("/admin/nodes/kvsession/")
            expect(page.get_by_test_id("session-group")).to_have_count(3)
            operator.take(f"sessions-{theme}")
            operator.go("/admin/nodes/node/")
            page.get_by_role("link", name=mesh.urls[1]).click()
            expect(page.get_by_test_id("session-row")).to_have_count(3)
            operator.take(f"node-{theme}")
            background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        for stream in streams:
            stream.close()
        wait_until(mesh.is_idle, 10)
        operator.go("/admin/generation/generation/")
        expect(page.locator("#generation-totals dd")).to_have_count(7)
        operator.take(f"generations-{theme}")
        page.locator("#result_list tbody th a").first.click()
        expect(page.locator("#generation-timeline svg")).to_be_visible()
        operator.take(f"generation-{theme}")
    darkness = sum(int(part) for part in background.strip("rgba()").split(",")[:3]) < 3 * 128
    assert darkness == (theme == "dark")
    for name in ("overview", "sessions", "node", "generations", "generation"):
        assert (SCREENSHOTS / f"{name}-{theme}.png").stat().st_size > 10_000
