"""The page of /v1: it shows the schema, and tries an endpoint with a key that is typed in."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.conftest import AtWork
from tests.toy_mesh import ToyMesh


def test_the_page_shows_every_endpoint_and_asks_one(watched_mesh: ToyMesh, at_work: AtWork) -> None:
    """`at_work` fails at its end if the browser refused anything that the page wanted."""
    with at_work(watched_mesh.head) as operator:
        page = operator.page
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        operator.go("/v1/docs/")
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/models/{name}"):
            expect(page.locator(f'.opblock-summary-path[data-path="{path}"]')).to_be_visible()
        page.get_by_role("button", name="Authorize").click()
        page.locator(".auth-container input").fill(watched_mesh.api_key)
        page.locator(".auth-container .authorize").click()
        page.get_by_role("button", name="Close").click()
        page.locator('.opblock-summary-path[data-path="/v1/models"]').click()
        page.get_by_role("button", name="Try it out").click()
        page.get_by_role("button", name="Execute").click()
        answer = page.locator(".live-responses-table .response .highlight-code").first
        expect(answer).to_contain_text(watched_mesh.model.name)
        operator.take("api-docs")
        assert all(url.startswith((watched_mesh.head.url, "data:")) for url in asked)
        kept = page.evaluate("JSON.stringify({...localStorage, ...sessionStorage})")
        assert watched_mesh.api_key not in kept
