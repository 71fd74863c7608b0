"""What browsers are told to refuse: no page of the admin needs it, and it is refused."""

from __future__ import annotations

import re
from collections import Counter
from urllib.parse import urlsplit

import pytest

from tests.browser.conftest import AtWork
from tests.integration.test_chat import chat
from tests.marks import longer
from tests.toy_mesh import ToyMesh

#: Sent with every page, with what must stand in it.
HEADERS = {
    "content-security-policy": ("default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"),
    "referrer-policy": ("same-origin",),
    "x-content-type-options": ("nosniff",),
    "x-frame-options": ("DENY",),
    "cross-origin-opener-policy": ("same-origin",),
    "permissions-policy": ("camera=()", "geolocation=()"),
    "cache-control": ("no-store",),
}


@pytest.mark.parametrize("alike", [1, longer(1000)])
def test_every_page_of_the_admin_lives_with_its_policy(watched_mesh: ToyMesh, at_work: AtWork, alike: int) -> None:
    """Follows the links below /admin/, but only so many of those that differ in numbers alone.

    `at_work` fails at its end if the browser complained about anything.
    """
    chat(watched_mesh, 5)
    seen, waiting, kinds = set(), ["/admin/"], Counter[str]()
    with at_work(watched_mesh.head) as operator:
        page = operator.page
        while waiting:
            path = waiting.pop(0)
            if path in seen or "logout" in path or path.endswith(".json"):
                continue
            seen.add(path)
            kinds[kind := re.sub(r"[0-9]+", "N", path)] += 1
            if kinds[kind] > alike:
                continue
            answer = page.goto(watched_mesh.head.url + path)
            assert answer is not None and answer.status == 200, path
            for name, parts in HEADERS.items():
                said = answer.headers.get(name, "")
                assert all(part in said for part in parts), (path, name, said)
            links: list[str] = page.eval_on_selector_all("a[href]", "links => links.map(link => link.href)")
            waiting += [urlsplit(link).path for link in links if link.startswith(f"{watched_mesh.head.url}/admin/")]
        visited = {path.split("/")[3] for path in seen if path.count("/") > 3}
        assert {"mesh", "kvsession", "node", "generation", "apikey", "user", "accessattempt"} <= visited
        assert "/admin/generation/apikey/add/" in seen


def test_a_script_that_somebody_smuggled_in_does_not_run(watched_mesh: ToyMesh, at_work: AtWork) -> None:
    with at_work(watched_mesh.head) as operator:
        operator.go("/admin/nodes/mesh/")
        ran = operator.page.evaluate(
            """() => {
                const script = document.createElement("script");
                script.textContent = "window.ran = true";
                document.head.append(script);
                return window.ran === true;
            }"""
        )
        assert ran is False
        (complaint,) = operator.complaints
        assert "Content Security Policy" in complaint
        operator.complaints.clear()
