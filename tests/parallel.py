"""What `-n 3` needs: which tests keep together, in which order, and what workers measured.

`make test` gives `-n 3 --dist loadscope --no-loadscope-reorder`: groups are handed out one by one in the order below.
Why: docs/decisions/0015-test-workers.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.architecture_table import TABLE, ArchitectureTable

ROOT = Path(__file__).parent.parent
UNIT = ROOT / "tests" / "unit"
#: Folders whose files share one mesh.
SHARED = tuple(ROOT / "tests" / name for name in ("chaos", "clients", "heads"))
REAL_MESH = "real_mesh"
TABLE_KEY = "architecture_table"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Orders the groups on each worker, as they are handed out.

    Files that use the database in the test's process come first: a browser that has run on a worker leaves a loop on
    its thread, where Django refuses the database. Then what takes longest, so that all workers end at about one time.
    """
    yield
    if not hasattr(config, "workerinput"):
        return
    groups = {item: group_of(item.nodeid) for item in items}
    with_database = {group for item, group in groups.items() if _uses_database(item)}
    # After others have ordered the tests, or shuffled them; their order within a group stays.
    items.sort(
        key=lambda item: (
            groups[item] not in with_database,
            groups[item] != REAL_MESH,
            UNIT in item.path.parents,
        )
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """xdist's own groups are lost under pytest 9.2: it names them in a place that pytest does not read any more."""
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return Groups(config, log)


def group_of(nodeid: str) -> str:
    """A file's tests stay on one worker, and so do all files that speak of the real mesh, and all of a folder that has
    one mesh.
    """
    file = nodeid.partition("::")[0]
    path = ROOT / file
    for folder in SHARED:
        if folder in path.parents:
            return folder.name
    return REAL_MESH if REAL_MESH in _text(path) else file


def _uses_database(item: pytest.Item) -> bool:
    fixtures = getattr(item, "fixturenames", ())
    return bool(item.get_closest_marker("django_db")) or "db" in fixtures or "transactional_db" in fixtures


@cache
def _text(path: Path) -> str:
    return path.read_text()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """On a worker: hands over what its tests measured."""
    output = getattr(session.config, "workeroutput", None)
    table = session.config.stash.get(TABLE, None)
    if output is not None and table is not None:
        output[TABLE_KEY] = table.as_plain()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """Beside the workers: takes it over."""
    rows = getattr(node, "workeroutput", {}).get(TABLE_KEY, [])
    if rows:
        node.config.stash.setdefault(TABLE, ArchitectureTable()).add_plain(rows)  # type: ignore[attr-defined]
