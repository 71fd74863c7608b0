from __future__ import annotations

import re
import time
from pathlib import Path

from playwright.sync_api import expect

from tests import processes
from tests.browser.conftest import AtWork, make_operator
from tests.toy_mesh import ToyMesh

OVERVIEW = "/admin/nodes/mesh/"
#: What the operator may have to wait until the page shows it, in seconds.
SOON = 6.0


def test_a_node_that_is_killed_is_shown_as_gone_and_its_layers_as_uncovered(
    toy_mesh: ToyMesh, at_work: AtWork, tmp_path: Path
) -> None:
    tail = processes.node(tmp_path / "tail", toy_mesh.model, "2:4")
    head = processes.head(tmp_path / "head", toy_mesh.model, [toy_mesh.nodes[0].url, tail.url])
    processes.prepare_head(head)
    make_operator(head)
    with processes.serving(tail, head), at_work(head) as operator:
        operator.go(OVERVIEW)
        page = operator.page
        row = page.locator(f'[data-testid="node-row"][data-node="{tail.url}"]')
        expect(row).to_have_attribute("data-state", "ready")
        expect(page.get_by_test_id("layer-gap")).to_have_count(0)
        tail.kill()
        killed_at = time.monotonic()
        expect(row).to_have_attribute("data-state", "unreachable", timeout=SOON * 1000)
        gap = page.get_by_test_id("layer-gap")
        expect(gap).to_have_attribute("data-start", "2", timeout=SOON * 1000)
        expect(gap).to_have_attribute("data-end", "4")
        assert time.monotonic() - killed_at < SOON
        expect(page.get_by_test_id("mesh-summary")).to_have_text(re.compile("1 of 2"))
        operator.take("overview-lost-node")
