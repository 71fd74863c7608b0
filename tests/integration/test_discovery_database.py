"""Many writers at once, as head workers are when many nodes start together: on a SQLite file and on PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import processes
from tests.processes import Served

#: Runs `work(number)` in six threads, each with a connection of its own; `failures` is what went wrong.
TOGETHER = """
import threading
from django.db import connection
failures = []

def run(number):
    try:
        start.wait()
        work(number)
    except BaseException as error:
        failures.append(repr(error))
    finally:
        connection.close()

start = threading.Barrier(6)
threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""

ANNOUNCE = (
    """
from nodes.announcements import accept
from nodes.models import Node
from tests.unit.nodes.announced import announcement, status

def work(number):
    for round in range(5):
        # In another order for each: statements that held several rows would wait in a circle.
        for port in (1, 2, 3)[:: 1 if number % 2 else -1]:
            made = announcement(url=f"http://127.0.0.1:{port}", boot_id=f"boot-{number}-of-{round}")
            for _ in range(2):
                accept(made, "127.0.0.1", ask=lambda url, made=made: status(made))
"""
    + TOGETHER
    + """
result = failures, sorted(Node.objects.values_list("url", flat=True))
"""
)

JOIN = (
    """
from nodes.joining import JoinRequest, offer
from nodes.models import LayerReservation
from tests.unit.nodes.test_joining import MODEL, room
offered = []

def work(number):
    made = offer(JoinRequest(room(15, tail=True), port=8001 + number), "127.0.0.1", model=MODEL)
    offered.append(str(made.layers))
"""
    + TOGETHER
    + """
result = failures, sorted(offered), LayerReservation.objects.exclude(url="").count()
"""
)


@pytest.fixture(params=["sqlite", "postgresql"])
def head(request: pytest.FixtureRequest, tmp_path: Path) -> Served:
    environ = {}
    if request.param == "postgresql":
        cluster = request.getfixturevalue("postgres")
        environ["DATABASE_URL"] = cluster.new_database(f"discovery-{request.function.__name__}"[:60])
    head = processes.head(tmp_path, Path("none"), [], **environ)
    processes.prepare_head(head)
    return head


def test_announcements_side_by_side_leave_one_row_per_url(head: Served) -> None:
    urls = ["http://127.0.0.1:1", "http://127.0.0.1:2", "http://127.0.0.1:3"]
    assert processes.in_django(head, ANNOUNCE) == ([], urls)


def test_machines_that_join_at_the_same_moment_get_different_layers(head: Served) -> None:
    """Two halves of a model: six machines that ask at once get three of each."""
    assert processes.in_django(head, JOIN) == ([], 3 * ["0:16"] + 3 * ["16:30"], 6)
