"""An operator's browser: Debian's Chromium over the running toy mesh.

playwright's loop runs on the thread of the tests, where Django then refuses to touch the database: all is read over
HTTP or in processes of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests import processes
from tests.processes import ROOT, Served
from tests.toy_mesh import ToyMesh

CHROMIUM = Path("/usr/bin/chromium")
SCREENSHOTS = ROOT / "var" / "screenshots"
USER, PASSWORD = "watcher", "a-password-for-tests"
#: Debian's Chromium asks servers of its makers for this and that unless it is told not to.
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
expect.set_options(timeout=10_000)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    if not CHROMIUM.exists():
        pytest.fail(
            f"The browser tests need {CHROMIUM}. `make test` installs it where it may (Debian, as root); "
            "elsewhere: apt-get install chromium, or leave them out with ARGS='--ignore tests/browser'."
        )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


class Operator:
    """Someone with all rights at the admin of one head; `page` is a browser window of theirs."""

    def __init__(self, head: Served, page: Page) -> None:
        self.head = head
        self.page = page
        self.page.set_default_timeout(10_000)
        #: What the browser complained about: scripts, policies, files that are not there.
        self.complaints: list[str] = []
        page.on("console", lambda line: self._hear(line.type, f"{line.text} {line.location}"))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def go(self, path: str) -> None:
        answer = self.page.goto(self.head.url + path)
        assert answer is not None and answer.status == 200, answer

    def log_in(self) -> None:
        self.go("/admin/login/?next=/admin/")
        self.page.get_by_label("Username").fill(USER)
        self.page.get_by_label("Password").fill(PASSWORD)
        self.page.get_by_role("button", name="Log in").click()
        self.page.wait_for_url("**/admin/")

    def take(self, name: str) -> None:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)

    def _hear(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(f"{kind}: {text}")


AtWork = Callable[..., Any]


@pytest.fixture(scope="session")
def at_work(chromium: Browser) -> AtWork:
    """`with at_work(head, javascript=False, dark=True) as operator:` is a fresh window, logged in.

    At its end the browser must have had nothing to complain about.
    """

    @contextmanager
    def at_work(head: Served, *, javascript: bool = True, dark: bool = False) -> Iterator[Operator]:
        context = chromium.new_context(
            java_script_enabled=javascript,
            color_scheme="dark" if dark else "light",
            viewport={"width": 1400, "height": 900},
        )
        try:
            operator = Operator(head, context.new_page())
            operator.log_in()
            yield operator
            assert operator.complaints == []
        finally:
            context.close()

    return at_work


def make_operator(head: Served) -> None:
    """A superuser in the head's database, for `at_work`."""
    processes.in_django(
        head,
        "from django.contrib.auth.models import User\n"
        f"User.objects.filter(username={USER!r}).exists() or "
        f"User.objects.create_superuser({USER!r}, password={PASSWORD!r})\n",
    )


@pytest.fixture(scope="session")
def watched_mesh(toy_mesh: ToyMesh) -> ToyMesh:
    """The toy mesh with an operator."""
    make_operator(toy_mesh.head)
    return toy_mesh
