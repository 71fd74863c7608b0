from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from django.apps import apps
from django.db import connection
from django.test.utils import CaptureQueriesContext

from nodes import announcements
from nodes.announcement import Announcement
from nodes.announcements import MOST_NODES, accept, forget_gone, roster
from nodes.apps import NodesConfig
from nodes.errors import BadRequest, Busy, NodeTimeout, NotVerified, OutsideNetworks, TooManyNodes
from nodes.models import LayerReservation, Node, NodeSample
from tests.unit.nodes.announced import BOOT, URL, announcement, status
from tests.unit.nodes.fake_node import SECRET, FakeNode

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
OTHER_BOOT = "boot-two-0123456789"


class Mesh:
    """What answers at each URL, and what the head was told."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[str] = []
        self.told: list[tuple[str, str]] = []

    def ask(self, url: str) -> dict[str, Any]:
        self.asked.append(url)
        if url not in self.answers:
            raise NodeTimeout(f"{url} did not answer within 2.5 s.")
        answer: dict[str, Any] = self.answers[url]
        return answer

    def accept(self, made: Announcement, *, now: datetime = NOW, address: str = "127.0.0.1") -> Node:
        return accept(made, address, now=now, ask=self.ask)

    def join(self, made: Announcement, **options: Any) -> Node:
        """The node runs and announces itself."""
        self.answers[made.url] = status(made)
        return self.accept(made, **options)


@pytest.fixture
def mesh(monkeypatch: pytest.MonkeyPatch) -> Mesh:
    mesh, config = Mesh(), apps.get_app_config("nodes")
    monkeypatch.setattr(config, "announced", lambda url: mesh.told.append(("announced", url)))
    monkeypatch.setattr(config, "left", lambda url: mesh.told.append(("left", url)))
    return mesh


def seconds(count: float) -> timedelta:
    return timedelta(seconds=count)


def test_a_new_node_gets_a_row_once_its_url_has_said_the_same(mesh: Mesh) -> None:
    row = mesh.join(announcement())
    assert mesh.asked == [URL]
    assert Node.objects.get() == row
    assert (row.url, row.boot_id, row.model_name, row.fingerprint, row.layers, row.dtype, row.version) == (
        URL, BOOT, "toy", "sha256:toy", "0:15", "float32", "0.1.0"
    )  # fmt: skip
    assert (row.state, row.max_sessions, row.sessions, row.announced_from) == ("ready", 8, 1, "127.0.0.1")
    assert (row.announced_at, row.left_at, row.seen_at) == (NOW, None, None)
    assert mesh.told == [("announced", URL)]
    assert roster(NOW) == [URL]


def test_without_a_url_the_address_that_was_seen_and_the_port_are_it(mesh: Mesh) -> None:
    made = announcement(url=None, port=8001)
    mesh.answers[URL] = status(made)
    assert mesh.accept(made).url == URL


def test_a_beat_asks_nobody_and_costs_two_statements(mesh: Mesh) -> None:
    mesh.join(announcement())
    for index in range(1, 4):
        with CaptureQueriesContext(
            connection,
        ) as queries:
            row = mesh.accept(
                announcement(load={"sessions": index, "bytes": 1}, state="draining"), now=NOW + seconds(5)
            )
        assert [query["sql"].split()[0] for query in queries] == ["SELECT", "UPDATE"]
        assert (row.sessions, row.state, row.announced_at) == (index, "draining", NOW + seconds(5))
        assert Node.objects.values("sessions", "state", "announced_at").get() == {
            "sessions": index, "state": "draining", "announced_at": NOW + seconds(5)
        }  # fmt: skip
    assert mesh.asked == [URL]
    assert mesh.told == 4 * [("announced", URL)]


def test_d07_a_restart_updates_the_row_and_there_is_no_second_one(mesh: Mesh) -> None:
    mesh.join(announcement())
    mesh.join(announcement(boot_id=OTHER_BOOT, layers="15:30"), now=NOW + seconds(3))
    row = Node.objects.get()
    assert (row.boot_id, row.layers) == (OTHER_BOOT, "15:30")
    assert mesh.asked == [URL, URL]


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("boot_id", OTHER_BOOT, "MESHNET_URL"),
        ("fingerprint", "sha256:other", "fingerprint"),
        ("dtype", "bfloat16", "dtype"),
        ("start_layer", 1, "start_layer"),
        ("end_layer", 16, "end_layer"),
        ("end_layer", None, "end_layer"),
    ],
)
def test_what_the_url_says_otherwise_is_not_believed(mesh: Mesh, name: str, value: Any, says: str) -> None:
    made = announcement()
    mesh.answers[URL] = status(made, **{name: value})
    with pytest.raises(NotVerified, match=says):
        mesh.accept(made)
    assert not Node.objects.exists()
    assert mesh.told == []


def test_a_url_that_does_not_answer_is_refused_with_advice(mesh: Mesh) -> None:
    with pytest.raises(NotVerified, match=r"did not answer.*MESHNET_URL.*firewall"):
        mesh.accept(announcement())
    assert not Node.objects.exists()


def test_of_two_nodes_that_claim_a_url_the_one_that_answers_there_has_it(mesh: Mesh) -> None:
    mesh.join(announcement())
    with pytest.raises(NotVerified):
        mesh.accept(announcement(boot_id=OTHER_BOOT))
    assert Node.objects.get().boot_id == BOOT
    mesh.join(announcement(boot_id=OTHER_BOOT))
    with pytest.raises(NotVerified):
        mesh.accept(announcement())
    assert Node.objects.get().boot_id == OTHER_BOOT


@pytest.mark.parametrize("url", ["https://10.0.0.7", "http://169.254.169.254", "http://0.0.0.0:8001"])
def test_nobody_outside_the_networks_is_asked(mesh: Mesh, url: str) -> None:
    for state in ("ready", "leaving"):
        with pytest.raises(OutsideNetworks):
            mesh.accept(announcement(url=url, state=state))
    with pytest.raises(OutsideNetworks):
        mesh.accept(announcement(url=None, port=80), address="10.0.0.7")
    assert mesh.asked == []


@pytest.mark.parametrize("address", ["", "unix:", "localhost"])
def test_an_address_that_makes_no_url_is_refused(mesh: Mesh, address: str) -> None:
    with pytest.raises(BadRequest):
        mesh.accept(announcement(url=None, port=80), address=address)


def test_good_bye_takes_the_node_away_at_once(mesh: Mesh) -> None:
    mesh.join(announcement())
    mesh.accept(announcement(state="leaving"), now=NOW + seconds(1))
    row = Node.objects.get()
    assert (row.left_at, row.state) == (NOW + seconds(1), "leaving")
    assert roster(NOW + seconds(1)) == []
    assert mesh.told[-1] == ("left", URL)
    assert mesh.asked == [URL]


def test_a_late_beat_does_not_undo_a_good_bye_and_a_new_start_does(mesh: Mesh) -> None:
    mesh.join(announcement())
    mesh.accept(announcement(state="leaving"))
    with pytest.raises(NotVerified, match="good-bye"):
        mesh.accept(announcement())
    assert roster(NOW) == []
    mesh.join(announcement(boot_id=OTHER_BOOT))
    assert roster(NOW) == [URL]
    assert Node.objects.get().left_at is None


def test_a_beat_that_a_good_bye_overtakes_does_not_undo_it(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    mesh.join(announcement())
    beat = announcements._beat

    def overtaken(*arguments: Any) -> bool:
        monkeypatch.setattr(announcements, "_beat", beat)
        mesh.accept(announcement(state="leaving"))
        return beat(*arguments)

    monkeypatch.setattr(announcements, "_beat", overtaken)
    with pytest.raises(NotVerified, match="good-bye"):
        mesh.accept(announcement(state="draining"))
    assert roster(NOW) == []


def test_the_good_bye_of_an_older_process_changes_nothing(mesh: Mesh) -> None:
    mesh.join(announcement(boot_id=OTHER_BOOT))
    row = mesh.accept(announcement(state="leaving"))
    assert (row.boot_id, row.left_at) == (OTHER_BOOT, None)
    assert ("left", URL) not in mesh.told


def test_the_good_bye_of_a_stranger_makes_no_row(mesh: Mesh) -> None:
    assert mesh.accept(announcement(state="leaving")).pk is None
    assert not Node.objects.exists()


def test_a_removed_node_stays_removed_whatever_it_announces(mesh: Mesh) -> None:
    mesh.join(announcement())
    Node.objects.update(is_removed=True)
    mesh.told.clear()
    mesh.accept(announcement())
    mesh.join(announcement(boot_id=OTHER_BOOT))
    assert Node.objects.get().is_removed
    assert mesh.told == [], "the head is not told of it"
    assert not Node.objects.filter(is_removed=False).exists()
    assert roster(NOW) == [URL], "its pages show it, as they show removed nodes of the settings"


def test_a_node_of_the_settings_that_announces_itself_is_verified_first(mesh: Mesh) -> None:
    Node.objects.create(url=URL, boot_id=BOOT, fingerprint="sha256:toy", dtype="float32", start_layer=0, end_layer=15)
    with pytest.raises(NotVerified):
        mesh.accept(announcement())
    mesh.join(announcement())
    assert Node.objects.get().announced_at == NOW


@pytest.mark.parametrize(("beat", "silence"), [(5.0, 15.0), (1.0, 15.0), (30.0, 90.0)])
def test_a_node_is_offline_after_three_missed_beats(mesh: Mesh, settings: Any, beat: float, silence: float) -> None:
    settings.MESHNET_ANNOUNCE_SECONDS = beat
    mesh.join(announcement())
    assert roster(NOW + seconds(silence - 0.1)) == [URL]
    assert roster(NOW + seconds(silence)) == []
    mesh.accept(announcement(), now=NOW + seconds(silence + 60))
    assert roster(NOW + seconds(silence + 60)) == [URL], "it was only cut off"


def test_the_roster_names_those_of_the_settings_not_once_more(mesh: Mesh, settings: Any) -> None:
    settings.MESHNET_NODES = ["http://LOCALHOST:8001/", "http://127.0.0.1:9/"]
    mesh.join(announcement(url="http://localhost:8001"))
    mesh.join(announcement(url="http://127.0.0.1:9", boot_id=OTHER_BOOT))
    assert roster(NOW) == []


def test_a_node_that_is_known_under_two_urls_is_named_once(mesh: Mesh, settings: Any) -> None:
    mesh.join(announcement(url="http://localhost:8001"))
    mesh.join(announcement(url="http://127.0.0.1:8001"))
    assert roster(NOW) == ["http://localhost:8001"]
    settings.MESHNET_NODES = ["http://node:8001"]
    Node.objects.create(url="http://node:8001", boot_id=BOOT, seen_at=NOW - seconds(60))
    assert roster(NOW) == ["http://localhost:8001"], "under the settings' name it is silent"
    Node.objects.filter(url="http://node:8001").update(seen_at=NOW)
    assert roster(NOW) == []


def test_nodes_stand_in_the_order_of_their_coming(mesh: Mesh) -> None:
    for port in (8003, 8001, 8002):
        mesh.join(announcement(url=f"http://127.0.0.1:{port}", boot_id=f"boot-of-{port}"))
    assert [url[-4:] for url in roster(NOW)] == ["8003", "8001", "8002"]


def test_nodes_that_are_gone_for_a_day_are_forgotten(mesh: Mesh, settings: Any) -> None:
    settings.MESHNET_NODES = ["http://127.0.0.1:3/"]
    for port in range(1, 5):
        mesh.join(announcement(url=f"http://127.0.0.1:{port}", boot_id=f"boot-of-{port}"))
    Node.objects.filter(url="http://127.0.0.1:2").update(is_removed=True)
    Node.objects.create(url="http://127.0.0.1:5")
    gone = Node.objects.get(url="http://127.0.0.1:1")
    NodeSample.objects.create(node=gone, at=NOW, sessions=0, bytes=0, evictions=0, tokens=0)
    mesh.accept(announcement(url="http://127.0.0.1:4", boot_id="boot-of-4"), now=NOW + timedelta(hours=23))
    assert forget_gone(NOW + timedelta(hours=24)) == 0
    assert forget_gone(NOW + timedelta(hours=24, seconds=1)) == 1
    assert sorted(url[-1] for url in Node.objects.values_list("url", flat=True)) == ["2", "3", "4", "5"]
    assert not NodeSample.objects.exists()


def test_reservations_that_are_over_are_forgotten_too() -> None:
    for url, until in (("", NOW - seconds(99)), ("http://a", NOW - seconds(1)), ("http://b", NOW + seconds(1))):
        LayerReservation.objects.create(url=url, start_layer=0, end_layer=1, until=until)
    forget_gone(NOW)
    assert sorted(LayerReservation.objects.values_list("url", flat=True)) == ["", "http://b"]


def test_an_announcement_ends_the_reservation(mesh: Mesh) -> None:
    for url in (URL, "http://b"):
        LayerReservation.objects.create(url=url, start_layer=0, end_layer=15, until=NOW + seconds(60))
    mesh.join(announcement())
    assert [reservation.url for reservation in LayerReservation.objects.all()] == ["http://b"]


def test_a_node_with_the_secret_cannot_fill_the_table(mesh: Mesh) -> None:
    Node.objects.bulk_create(
        Node(url=f"http://127.0.0.1:{port}", boot_id=f"boot-of-{port}", announced_at=NOW)
        for port in range(10_000, 10_000 + MOST_NODES)
    )
    Node.objects.create(url="http://127.0.0.1:3")
    with pytest.raises(TooManyNodes):
        mesh.join(announcement())
    assert mesh.asked == []
    later = NOW + seconds(16)
    Node.objects.filter(url="http://127.0.0.1:10000").update(announced_at=later)
    mesh.join(announcement(), now=later)
    assert sorted(Node.objects.values_list("url", flat=True)) == [
        "http://127.0.0.1:10000", "http://127.0.0.1:3", URL
    ], "those that had gone made room"  # fmt: skip


def test_a_head_that_cannot_take_note_still_accepts(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(url: str) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(apps.get_app_config("nodes"), "announced", fail)
    assert mesh.join(announcement()).url == URL


def test_only_so_many_are_verified_at_once(mesh: Mesh) -> None:
    turns = cast(NodesConfig, apps.get_app_config("nodes")).verifications
    taken = 0
    while turns.acquire(blocking=False):
        taken += 1
    try:
        with pytest.raises(Busy):
            mesh.accept(announcement())
        assert mesh.asked == []
    finally:
        turns.release(taken)
    mesh.join(announcement())


def test_a_node_is_asked_with_the_secret_over_http(make_node: Callable[..., FakeNode], settings: Any) -> None:
    node = make_node("0:15")
    node.boot_id = BOOT
    settings.MESHNET_SECRET = SECRET
    assert accept(announcement(url=node.url), "127.0.0.1").url == node.url
    assert node.requests == ["GET /status"]
    node.secret = "another secret"
    with pytest.raises(NotVerified, match="secret is missing or wrong"):
        accept(announcement(url=node.url, boot_id=OTHER_BOOT), "127.0.0.1")


@pytest.fixture
def restart_while_asked(mesh: Mesh) -> Iterator[None]:
    """While the first process is verified, its successor announces itself."""
    ask = mesh.ask

    def twice(url: str) -> dict[str, Any]:
        if not mesh.asked:
            answer = ask(url)
            mesh.join(announcement(boot_id=OTHER_BOOT, layers="15:30"))
            return answer
        return ask(url)

    mesh.ask = twice  # type: ignore[method-assign]
    yield


@pytest.mark.usefixtures("restart_while_asked")
def test_whoever_wrote_last_is_corrected_by_the_next_beat(mesh: Mesh) -> None:
    mesh.join(announcement())
    assert Node.objects.get().boot_id == BOOT, "late, but it did answer there"
    mesh.accept(announcement(boot_id=OTHER_BOOT, layers="15:30"))
    row = Node.objects.get()
    assert (row.boot_id, row.layers) == (OTHER_BOOT, "15:30")


@pytest.mark.django_db(transaction=True)
def test_no_connection_is_held_while_a_node_is_asked(mesh: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[bool] = []
    monkeypatch.setattr(announcements.connection, "close", lambda: closed.append(not mesh.asked))
    mesh.join(announcement())
    assert closed == [True]
