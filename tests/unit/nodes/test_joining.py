from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.apps import apps

from nodes import joining
from nodes.announcements import accept
from nodes.errors import BadRequest, NoRoom, OutsideNetworks, WrongLayers, WrongModel
from nodes.joining import RESERVE_BYTES, JoinRequest, ServedModel, offer, served_model
from nodes.layer_costs import LayerCosts
from nodes.layers import LayerRange
from nodes.models import LayerReservation, Node
from tests.unit.nodes.announced import announcement, status

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)
MIB = 1024**2


def costs(n_layers: int, *, weights: int = 100 * MIB, cache: int = MIB, tail: int = 150 * MIB) -> LayerCosts:
    return LayerCosts(
        config=SimpleNamespace(num_hidden_layers=n_layers),
        context_length=512,
        weights=(weights,) * n_layers,
        caches=(cache,) * n_layers,
        tail=tail,
    )


MODEL = ServedModel("toy", "sha256:toy", "float32", costs(30))


def room(layers: int, *, tail: bool = False) -> int:
    """Memory for so many layers and no more."""
    return RESERVE_BYTES + layers * 101 * MIB + (150 * MIB if tail else 0)


def ask(memory: int, port: int = 8001, *, now: datetime = NOW, served: ServedModel = MODEL, **wanted: Any) -> str:
    made = offer(JoinRequest(memory, port=port, **wanted), "127.0.0.1", now=now, model=served)
    return str(made.layers)


def node(url: str, layers: str, **fields: Any) -> None:
    start, end = map(int, layers.split(":"))
    Node.objects.create(
        url=url,
        start_layer=start,
        end_layer=end,
        **{"boot_id": url, "fingerprint": "sha256:toy", "dtype": "float32", "announced_at": NOW, **fields},
    )


@pytest.mark.django_db
def test_the_first_machine_gets_as_much_as_fits() -> None:
    assert ask(room(30, tail=True)) == "0:30"
    assert ask(room(12)) == "0:12"


@pytest.mark.django_db
def test_machines_that_ask_one_after_the_other_get_different_layers() -> None:
    assert [ask(room(15, tail=True), port) for port in (8001, 8002, 8003)] == ["0:16", "16:30", "0:16"]


@pytest.mark.django_db
def test_what_is_left_for_sessions_is_said() -> None:
    made = offer(JoinRequest(room(12) + 7, port=1), "127.0.0.1", now=NOW, model=MODEL)
    assert made.cache_bytes == 12 * MIB + 7
    assert made.as_json() == {
        "url": "http://127.0.0.1:1",
        "model": "toy",
        "fingerprint": "sha256:toy",
        "dtype": "float32",
        "context_length": 512,
        "n_layers": 30,
        "layers": "0:12",
        "cache_bytes": 12 * MIB + 7,
        "reserved_seconds": 60,
    }


@pytest.mark.django_db
def test_a_reservation_lasts_a_minute() -> None:
    assert ask(room(15), 8001) == "0:15"
    assert ask(room(15), 8002, now=NOW + timedelta(seconds=59)) == "15:29"
    assert ask(room(15), 8003, now=NOW + timedelta(seconds=60)) == "0:15"


@pytest.mark.django_db
def test_a_machine_that_asks_again_has_one_reservation() -> None:
    assert ask(room(15)) == "0:15"
    assert ask(room(15)) == "0:15"
    assert LayerReservation.objects.exclude(url="").count() == 1


@pytest.mark.django_db
def test_a_reservation_ends_with_the_announcement_and_the_node_counts_from_then_on() -> None:
    ask(room(15))
    made = announcement(layers="0:15")
    accept(made, "127.0.0.1", now=NOW, ask=lambda url: status(made))
    assert not LayerReservation.objects.exclude(url="").exists()
    assert ask(room(17, tail=True), 8002) == "15:30"


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("fields", "counts"),
    [
        ({}, True),
        ({"announced_at": None, "seen_at": NOW - timedelta(seconds=5)}, True),
        ({"announced_at": None, "seen_at": NOW - timedelta(seconds=20)}, False),
        ({"announced_at": None}, False),
        ({"announced_at": NOW - timedelta(seconds=20), "seen_at": NOW}, False),
        ({"left_at": NOW, "seen_at": NOW}, False),
        ({"state": "draining"}, False),
        ({"is_removed": True}, False),
        ({"fingerprint": "sha256:other"}, False),
        ({"dtype": "bfloat16"}, False),
        ({"url": "http://127.0.0.1:8001"}, False),
    ],
)
def test_nodes_count_that_could_serve_a_chat_now(fields: dict[str, Any], counts: bool) -> None:
    node(**{"url": "http://127.0.0.1:9", "layers": "0:15", **fields})
    assert ask(room(15)) == ("15:29" if counts else "0:15")


@pytest.mark.django_db
def test_a_node_that_is_known_under_two_urls_counts_once() -> None:
    node("http://127.0.0.1:9", "0:15", boot_id="one")
    node("http://localhost:9", "0:15", boot_id="one")
    node("http://127.0.0.1:8", "15:30", boot_id="two")
    assert ask(room(15)) == "0:15"


@pytest.mark.django_db
def test_promises_of_another_model_do_not_count() -> None:
    ask(room(15))
    assert ask(room(15), 8002, served=ServedModel("toy", "sha256:new", "float32", costs(30))) == "0:15"


@pytest.mark.django_db
def test_whoever_names_layers_gets_them() -> None:
    node("http://127.0.0.1:9", "12:24")
    assert ask(room(12), layers=LayerRange(12, 24)) == "12:24"
    assert LayerReservation.objects.exclude(url="").get().start_layer == 12


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("wanted", "error", "says"),
    [
        ({"layers": LayerRange(12, 31)}, WrongLayers, "0:30"),
        ({"model": "other"}, WrongModel, "serves toy"),
        ({"dtype": "bfloat16"}, WrongModel, "float32"),
        ({"layers": LayerRange(0, 13)}, NoRoom, "lacks 101 MiB"),
        ({"layers": LayerRange(18, 30)}, NoRoom, "lacks 150 MiB"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_reserved(
    wanted: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        ask(room(12), **wanted)
    assert not LayerReservation.objects.exclude(url="").exists()


@pytest.mark.django_db
def test_a_machine_that_is_too_small_hears_how_much_it_lacks() -> None:
    with pytest.raises(NoRoom, match="lacks") as caught:
        ask(RESERVE_BYTES + 100 * MIB)
    assert caught.value.as_json()["missing_bytes"] == MIB


@pytest.mark.django_db
def test_layers_that_share_keys_stay_together() -> None:
    sharing = SimpleNamespace(num_hidden_layers=6, kv_source_layers=[0, 1, 2, 3, 3, 3])
    model = ServedModel("toy", "sha256:toy", "float32", LayerCosts(sharing, 512, (MIB,) * 6, (0,) * 6, 0))
    with pytest.raises(WrongLayers, match="alone"):
        ask(room(9), layers=LayerRange(4, 6), served=model)
    node("http://127.0.0.1:9", "0:4")
    assert ask(RESERVE_BYTES + 3 * MIB, served=model) == "3:6"


@pytest.mark.django_db
def test_a_machine_outside_the_networks_is_told_at_once() -> None:
    with pytest.raises(OutsideNetworks):
        offer(JoinRequest(room(9), port=8001), "10.0.0.7", now=NOW, model=MODEL)


@pytest.mark.django_db
def test_the_served_model_is_read_from_the_settings_once(
    toy_folder: Any, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apps.get_app_config("nodes"), "served_model", None)
    settings.MESHNET_MODEL, settings.MESHNET_VAR_DIR = str(toy_folder("llama")), tmp_path
    model = served_model()
    assert model.fingerprint.startswith("sha256:")
    assert (model.name, model.dtype, model.costs.n_layers) == (toy_folder("llama").name, "float32", 4)
    assert served_model() is model


def test_a_request_comes_through_json_whole() -> None:
    for made in (
        JoinRequest(5, port=8001),
        JoinRequest(5, url="https://node", layers=LayerRange(1, 2), dtype="float32", model="owner/name"),
    ):
        assert JoinRequest.from_json(made.as_json()) == made


@pytest.mark.parametrize(
    "changes",
    [
        {"memory_bytes": -1},
        {"memory_bytes": None},
        {"port": 0},
        {"layers": "2:1"},
        {"layers": "1"},
        {"layers": 3},
        {"dtype": "int8"},
        {"model": "a\nb"},
        {"model": 7},
        {"url": "http://a/b"},
        {"more": 1},
    ],
)
def test_what_a_field_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        JoinRequest.from_json({"memory_bytes": 5, "port": 8001, **changes})


def test_the_reserve_is_what_the_commands_advise() -> None:
    assert joining.RESERVE_BYTES == 1024**3
