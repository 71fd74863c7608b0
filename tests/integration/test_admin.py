"""The admin of a real head, looking at and acting on real nodes, as a browser without JavaScript would."""

from __future__ import annotations

import http.cookiejar
import re
import urllib.parse
import urllib.request

import pytest

from tests import processes
from tests.integration.test_chat import LONG, chat, joined
from tests.processes import wait_until
from tests.toy_mesh import ToyMesh

PASSWORD = "a-password-for-tests"


class Browser:
    """Cookies and forms, nothing else."""

    def __init__(self, head_url: str) -> None:
        self._root = head_url
        self._opener = urllib.request.build_opener(
            urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()),
            urllib.request.ProxyHandler({}),
        )

    def get(self, path: str) -> str:
        with self._opener.open(self._root + path, timeout=20) as answer:
            return str(answer.read().decode())

    def submit(self, path: str, page: str, **fields: str) -> str:
        token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page)
        assert token is not None
        data = urllib.parse.urlencode({"csrfmiddlewaretoken": token[1], **fields}).encode()
        with self._opener.open(self._root + path, data=data, timeout=20) as answer:
            return str(answer.read().decode())


@pytest.fixture(scope="module")
def browser(toy_mesh: ToyMesh) -> Browser:
    processes.in_django(
        toy_mesh.head,
        "from django.contrib.auth.models import User\n"
        f"User.objects.create_superuser('operator', password='{PASSWORD}')\n",
    )
    browser = Browser(toy_mesh.head.url)
    browser.submit("/admin/login/?next=/admin/", browser.get("/admin/login/"), username="operator", password=PASSWORD)
    return browser


def page_with_session(browser: Browser, urls: list[str]) -> tuple[str, re.Match[str]] | None:
    page = browser.get("/admin/nodes/kvsession/")
    found = re.search(r'name="session" value="([\w-]+)"', page)
    return (page, found) if found is not None and all(page.count(url) > 1 for url in urls) else None


def test_an_operator_sees_a_running_session_and_evicts_it_and_the_answer_goes_on(
    toy_mesh: ToyMesh, browser: Browser
) -> None:
    undisturbed = chat(toy_mesh, LONG).choices[0].message.content
    before = [listing["stats"]["evictions"]["operator"] for listing in toy_mesh.sessions()]
    stream = chat(toy_mesh, LONG, stream=True)
    text = [next(stream).choices[0].delta.content or "" for _ in range(3)]
    with toy_mesh.proxy.holding():
        # Pages share what the nodes said for 2 s: the first may be from before the session was there on both.
        page, found = wait_until(lambda: page_with_session(browser, toy_mesh.urls), 10, "no page shows the session")
        asked = browser.submit("/admin/nodes/kvsession/evict/", page, session=found[1])
        assert asked.count("holds 1 of the 1 selected") == 2
        result = browser.submit("/admin/nodes/kvsession/evict/", asked, session=found[1], confirmed="yes")
    assert result.count("evicted 1 of 1 selected") == 2
    text.append(joined(stream))
    assert "".join(text) == undisturbed
    after = [listing["stats"]["evictions"]["operator"] for listing in toy_mesh.sessions()]
    assert [b - a for a, b in zip(before, after, strict=True)] == [1, 1]
    (row,) = [row for row in toy_mesh.rows() if row["session_id"] == found[1]]
    assert (row["status"], row["cache_misses"], row["prefills"]) == ("done", 1, 2)
    logged = processes.in_django(
        toy_mesh.head,
        "from django.contrib.admin.models import LogEntry\n"
        f"result = LogEntry.objects.filter(object_id='{found[1]}').count()\n",
    )
    assert logged == 1


def test_the_node_page_shows_what_the_running_nodes_say(toy_mesh: ToyMesh, browser: Browser) -> None:
    chat(toy_mesh, 3)
    wait_until(toy_mesh.is_idle, 5)

    def node_page() -> str | None:
        # Pages share what the nodes said for 2 s, and the keeper writes a node's row within 5.
        page = browser.get("/admin/nodes/node/")
        return page if "released" in page and all(url in page for url in toy_mesh.urls) else None

    page = wait_until(node_page, 15, "no page shows both nodes and their evictions by reason")
    assert all(layers in page for layers in ("0:2", "2:4"))
    assert "/ 8" in page, "sessions of the cap"
    assert re.search(r"10\sm", page), "the time to live"


def test_generations_can_be_looked_at_and_filtered_but_not_changed(toy_mesh: ToyMesh, browser: Browser) -> None:
    chat(toy_mesh, 3)
    page = browser.get("/admin/generation/generation/?status__exact=done")
    assert toy_mesh.model.name in page
    newest = toy_mesh.rows()[0]
    detail = browser.get(f"/admin/generation/generation/{newest['id']}/change/")
    assert toy_mesh.urls[0] in detail
    assert 'name="_save"' not in detail
