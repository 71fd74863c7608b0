"""How a machine joins: the head offers it layers and keeps them for it for a minute.

Two machines that ask two head workers at the same moment get different layers: the choice, from reading what is held
to writing the reservation, is one transaction that holds the lock of one row (on SQLite the write lock serves).
The node's first announcement ends the reservation (nodes/announcements.py), and so does the minute.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

from django.apps import apps
from django.conf import settings
from django.db import connection, transaction
from django.db.models import Q
from django.utils import timezone

from nodes.amounts import human_bytes
from nodes.announcement import DTYPES
from nodes.apps import NodesConfig
from nodes.errors import BadRequest, NoRoom, WrongLayers, WrongModel
from nodes.json_fields import LABEL, known_fields, one_of, place, text, whole
from nodes.layer_offer import choose_layers
from nodes.layers import LayerRange
from nodes.models import LayerReservation, Node, longest_silence
from nodes.networks import NodeNetworks, url_at

if TYPE_CHECKING:
    from nodes.layer_costs import LayerCosts

RESERVED_SECONDS = 60
#: Python, torch and the step under way (docs/operating.md): not for weights and caches.
RESERVE_BYTES = 1024**3

_FIELDS = frozenset({"url", "scheme", "port", "memory_bytes", "layers", "dtype", "model"})


@dataclass(frozen=True)
class JoinRequest:
    """What a machine says of itself. `layers`, `dtype` and `model` are None when it takes what the head offers."""

    memory_bytes: int
    url: str = ""
    scheme: str = "http"
    port: int = 0
    layers: LayerRange | None = None
    dtype: str | None = None
    model: str | None = None

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> JoinRequest:
        """Raises BadRequest that names the field."""
        known_fields(body, _FIELDS)
        url, scheme, port = place(body)
        return cls(
            memory_bytes=whole(body, "memory_bytes", 0, 10**18),
            url=url,
            scheme=scheme,
            port=port,
            layers=_layers(body["layers"]) if "layers" in body else None,
            dtype=one_of(body, "dtype", DTYPES) if "dtype" in body else None,
            model=text(body, "model", LABEL) if "model" in body else None,
        )

    def as_json(self) -> dict[str, Any]:
        where = {"url": self.url} if self.url else {"scheme": self.scheme, "port": self.port}
        layers = None if self.layers is None else str(self.layers)
        wanted = {"layers": layers, "dtype": self.dtype, "model": self.model}
        return {
            **where,
            "memory_bytes": self.memory_bytes,
            **{name: value for name, value in wanted.items() if value is not None},
        }


@dataclass(frozen=True)
class ServedModel:
    """The model of this head."""

    name: str
    fingerprint: str
    dtype: str
    costs: LayerCosts


@dataclass(frozen=True)
class Offer:
    """What the machine should serve, and under which URL. `cache_bytes` is what is left for sessions."""

    url: str
    model: ServedModel
    layers: LayerRange
    cache_bytes: int

    def as_json(self) -> dict[str, Any]:
        return {
            "url": self.url,
            "model": self.model.name,
            "fingerprint": self.model.fingerprint,
            "dtype": self.model.dtype,
            "context_length": self.model.costs.context_length,
            "n_layers": self.model.costs.n_layers,
            "layers": str(self.layers),
            "cache_bytes": self.cache_bytes,
            "reserved_seconds": RESERVED_SECONDS,
        }


def offer(wanted: JoinRequest, address: str, *, now: datetime | None = None, model: ServedModel | None = None) -> Offer:
    """Chooses layers for the machine, whose request came from `address`, and reserves them.

    Raises OutsideNetworks, WrongModel, WrongLayers, NoRoom; ModelUnavailable or ShardRefused when the head cannot tell
    what its own model takes.
    """
    now = now or timezone.now()
    url = wanted.url or url_at(wanted.scheme, address, wanted.port)
    NodeNetworks.from_settings().check(url)
    model = model or served_model()
    _check_agrees(wanted, model)
    LayerReservation.objects.get_or_create(
        url="", defaults={"start_layer": 0, "end_layer": 0, "until": datetime(1970, 1, 1, tzinfo=UTC)}
    )
    with transaction.atomic():
        LayerReservation.objects.select_for_update().get(url="")
        layers = wanted.layers or _choose(model, _held(url, model, now), wanted.memory_bytes)
        LayerReservation.objects.update_or_create(
            url=url,
            defaults={
                "fingerprint": model.fingerprint,
                "start_layer": layers.start,
                "end_layer": layers.end,
                "until": now + timedelta(seconds=RESERVED_SECONDS),
            },
        )
    cache_bytes = max(0, wanted.memory_bytes - RESERVE_BYTES - model.costs.weight_bytes(layers))
    return Offer(url, model, layers, cache_bytes)


def served_model() -> ServedModel:
    """The model of the settings and what its layers take; told once per process. Loads torch."""
    config = cast(NodesConfig, apps.get_app_config("nodes"))
    if config.served_model is None:
        from nodes.kv_plan import config_folder
        from nodes.layer_costs import read_costs
        from nodes.model_files import find_model
        from nodes.shard import wanted_files

        if not connection.in_atomic_block:
            connection.close()  # it may take seconds
        untested = settings.MESHNET_ALLOW_UNTESTED_MODELS
        own = wanted_files(None, settings.MESHNET_CONTEXT_LENGTH, allow_untested=untested)
        found = find_model(settings.MESHNET_MODEL, settings.MESHNET_VAR_DIR, download=False, wanted=own)
        costs = read_costs(
            config_folder(settings.MESHNET_MODEL, settings.MESHNET_VAR_DIR),
            settings.MESHNET_DTYPE,
            settings.MESHNET_CONTEXT_LENGTH,
            allow_untested=untested,
        )
        config.served_model = ServedModel(found.name, found.fingerprint, settings.MESHNET_DTYPE, costs)
    return config.served_model


def _check_agrees(wanted: JoinRequest, model: ServedModel) -> None:
    """Raises WrongModel, WrongLayers or NoRoom for what the machine itself demands."""
    if wanted.model is not None and wanted.model != model.name:
        raise WrongModel(f"This mesh serves {model.name}, not {wanted.model}.")
    if wanted.dtype is not None and wanted.dtype != model.dtype:
        raise WrongModel(f"This mesh computes in {model.dtype}, not in {wanted.dtype}.")
    if wanted.layers is not None:
        if wanted.layers.end > model.costs.n_layers:
            raise WrongLayers(f"{model.name} has layers 0:{model.costs.n_layers}; {wanted.layers} is not among them.")
        if not model.costs.runs_alone(wanted.layers):
            raise WrongLayers(f"The layers {wanted.layers} of {model.name} need keys of others: they cannot run alone.")
        _check_room(f"The layers {wanted.layers} take", model.costs.bytes(wanted.layers), wanted.memory_bytes)


def _choose(model: ServedModel, held: list[LayerRange], memory: int) -> LayerRange:
    costs = model.costs

    def fits(layers: LayerRange) -> bool:
        return costs.runs_alone(layers) and costs.bytes(layers) + RESERVE_BYTES <= memory

    layers = choose_layers(costs.n_layers, held, fits)
    if layers is None:
        smallest = min(costs.bytes(LayerRange(layer, layer + 1)) for layer in range(costs.n_layers))
        _check_room(f"One layer of {model.name} takes", smallest, memory)
        raise NoRoom(f"{model.name} cannot be cut so that a part of it fits.", missing_bytes=0)
    return layers


def _check_room(what: str, needed: int, memory: int) -> None:
    missing = needed + RESERVE_BYTES - memory
    if missing > 0:
        raise NoRoom(
            f"{what} {human_bytes(needed)} with the cache of one full text, and {human_bytes(RESERVE_BYTES)} are for "
            f"Python and torch: this machine lacks {human_bytes(missing)}.",
            missing_bytes=missing,
        )


def _held(url: str, model: ServedModel, now: datetime) -> list[LayerRange]:
    """What others hold or were promised. What is said of `url` itself does not count: that machine starts anew."""
    silent = now - longest_silence()
    static = Q(announced_at__isnull=True, seen_at__gt=silent)
    announced = Q(announced_at__gt=silent, left_at__isnull=True) & ~Q(state="draining")
    rows = Node.objects.filter(
        static | announced,
        fingerprint=model.fingerprint,
        dtype=model.dtype,
        is_removed=False,
        start_layer__isnull=False,
    )
    # A node that is known under two URLs holds its layers once.
    nodes = {row.boot_id or row.url: row for row in rows.exclude(url=url)}
    promised = LayerReservation.objects.filter(until__gt=now, fingerprint=model.fingerprint).exclude(url__in=("", url))
    return [
        *(LayerRange(row.start_layer or 0, row.end_layer or 0) for row in nodes.values()),
        *(LayerRange(start, end) for start, end in promised.values_list("start_layer", "end_layer")),
    ]


def _layers(value: Any) -> LayerRange:
    if not isinstance(value, str) or not re.fullmatch(r"\d{1,6}:\d{1,6}", value):
        raise BadRequest("layers must be text such as 0:15.")
    try:
        return LayerRange.parse(value)
    except ValueError as error:
        raise BadRequest(f"layers: {error}") from None
