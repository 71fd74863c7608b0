"""What nodes announce, on the head: one row per URL, written by whichever head worker was told.

Algorithm of `accept`:

1. The URL must lie where the secret may be sent (nodes/networks.py).
2. A beat of a node that is known (same URL, boot id and layers) is one look and one UPDATE of its row.
3. Whatever is new, or differs, is verified first: the URL itself is asked for its `/status`, which must name this boot
   id, these layers and this model. So nobody can put a node under an address that is not its own, and of two nodes
   that claim one address the one that answers there wins. No database connection is held meanwhile.
4. The row is then written by one upsert. Statements touch single rows, so that heads on one database never wait for
   each other in a circle. That an operator removed the node stays as it is.

Good-bye counts for the boot id that says it, and for good: a late beat of the same process does not undo it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, cast

from django.apps import apps
from django.conf import settings
from django.db import connection
from django.utils import timezone

from nodes import registry
from nodes.announcement import Announcement
from nodes.apps import NodesConfig
from nodes.errors import BadRequest, Busy, MeshnetError, NotVerified, TooManyNodes
from nodes.models import LayerReservation, Node, longest_silence
from nodes.networks import NodeNetworks, as_address, normal_url

logger = logging.getLogger(__name__)

#: How long a node may take to say who it is.
VERIFY_SECONDS = 2.5
#: Rows of announced nodes, offline ones included: a node with the secret must not fill the database.
MOST_NODES = 2_000
#: An offline node's row is kept for this long.
FORGOTTEN_AFTER = timedelta(days=1)

#: What an announcement overwrites.
_FIELDS = (
    "boot_id", "model_name", "fingerprint", "start_layer", "end_layer", "dtype", "version", "announced_at",
    "announced_from", "left_at", "state", "max_sessions", "sessions",
)  # fmt: skip

#: Asks a URL for its status. Raises MeshnetError.
Ask = Callable[[str], dict[str, Any]]


def ask_status(url: str) -> dict[str, Any]:
    client = registry.connect(url)
    try:
        return client.status(timeout=VERIFY_SECONDS)
    finally:
        client.close()


def accept(announcement: Announcement, address: str, *, now: datetime | None = None, ask: Ask = ask_status) -> Node:
    """Takes an announcement that came from `address` and returns the node's row as it is now.

    Raises OutsideNetworks, NotVerified, TooManyNodes, BadRequest, or Busy when too many are being verified.
    """
    now = now or timezone.now()
    url = announcement.url_from(address)
    NodeNetworks.from_settings().check(url)
    if announcement.state == "leaving":
        return _leave(url, announcement, now)
    row = Node.objects.filter(url=url).first()
    if row is None or not _beat(row, announcement, address, now):
        # As it is by now: its good-bye may have come in between.
        row = Node.objects.filter(url=url).first()
        if row is not None and row.left_at is not None and row.boot_id == announcement.boot_id:
            raise NotVerified("This node has said good-bye: it must start anew to come back.")
        if row is None:
            _make_room(now)
        _verify(url, announcement, ask)
        row = _write(url, announcement, address, now)
    if not row.is_removed:
        _tell("announced", url)
    return row


def roster(now: datetime) -> list[str]:
    """URLs of the nodes that announce themselves, besides those of MESHNET_NODES; in the order of their coming.

    A node that is known under two URLs (two heads may see it from two sides) is named once. Nodes that an operator
    removed are named too, as those of MESHNET_NODES are: the head leaves both out of routes, and its pages show them.
    """
    static = {*settings.MESHNET_NODES, *static_urls()}
    lately = Node.objects.filter(url__in=static, seen_at__gt=now - longest_silence())
    taken = set(lately.exclude(boot_id="").values_list("boot_id", flat=True))
    urls = []
    for url, boot_id in Node.objects.announcing(now).order_by("added_at", "pk").values_list("url", "boot_id"):
        if url not in static and boot_id not in taken:
            taken.add(boot_id)
            urls.append(url)
    return urls


def forget_gone(now: datetime) -> int:
    """Deletes rows of nodes that announced themselves and have been gone for a day; how many. For the keeper.

    Rows of removed nodes stay, so that these stay removed, and so do those of nodes in MESHNET_NODES.
    """
    LayerReservation.objects.filter(until__lt=now).exclude(url="").delete()
    return _delete_gone(now - FORGOTTEN_AFTER)


def is_same(row: Node, announcement: Announcement) -> bool:
    """Whether the row is of this very process, with what it holds."""
    return (row.boot_id, row.fingerprint, row.dtype, row.start_layer, row.end_layer) == (
        announcement.boot_id,
        announcement.fingerprint,
        announcement.dtype,
        announcement.layers.start,
        announcement.layers.end,
    )


def _beat(row: Node, announcement: Announcement, address: str, now: datetime) -> bool:
    """Notes a known node's beat. False when it is not known, or has just become another in the table."""
    if row.announced_at is None or row.left_at is not None or not is_same(row, announcement):
        return False
    row.announced_at, row.announced_from = now, _address(address)
    row.state, row.sessions, row.max_sessions = announcement.state, announcement.sessions, announcement.max_sessions
    return bool(
        Node.objects.filter(pk=row.pk, boot_id=announcement.boot_id, left_at__isnull=True).update(
            announced_at=now,
            announced_from=row.announced_from,
            state=row.state,
            sessions=row.sessions,
            max_sessions=row.max_sessions,
        )
    )


def _leave(url: str, announcement: Announcement, now: datetime) -> Node:
    """Good-bye: of another process than the one in the row it changes nothing."""
    changed = Node.objects.filter(url=url, boot_id=announcement.boot_id, announced_at__isnull=False).update(
        left_at=now, state="leaving"
    )
    LayerReservation.objects.filter(url=url).delete()
    if changed:
        _tell("left", url)
    return Node.objects.filter(url=url).first() or Node(url=url, state="leaving")


def _verify(url: str, announcement: Announcement, ask: Ask) -> None:
    turns = _config().verifications
    if not turns.acquire(blocking=False):
        raise Busy("This head is verifying as many nodes as it does at once.")
    try:
        if not connection.in_atomic_block:
            connection.close()
        status = ask(url)
    except MeshnetError as error:
        raise NotVerified(
            f"This head cannot verify {url}: {error.detail} If heads reach this node under another address, set "
            "MESHNET_URL (make node URL=…); if it is the right one, look at the firewall between them."
        ) from None
    finally:
        turns.release()
    if status.get("boot_id") != announcement.boot_id:
        raise NotVerified(
            f"Another process answers at {url}: that address is not this node's, or it has restarted. Set MESHNET_URL "
            "(make node URL=…) to the address under which heads reach this node."
        )
    said = {
        "fingerprint": announcement.fingerprint,
        "dtype": announcement.dtype,
        "start_layer": announcement.layers.start,
        "end_layer": announcement.layers.end,
    }
    for name, value in said.items():
        if status.get(name) != value:
            raise NotVerified(f"{url} says of itself another {name} than was announced.")


def _write(url: str, announcement: Announcement, address: str, now: datetime) -> Node:
    row = Node(
        url=url,
        boot_id=announcement.boot_id,
        model_name=announcement.model,
        fingerprint=announcement.fingerprint,
        start_layer=announcement.layers.start,
        end_layer=announcement.layers.end,
        dtype=announcement.dtype,
        version=announcement.version,
        announced_at=now,
        announced_from=_address(address),
        left_at=None,
        state=announcement.state,
        max_sessions=announcement.max_sessions,
        sessions=announcement.sessions,
    )
    Node.objects.bulk_create([row], update_conflicts=True, unique_fields=["url"], update_fields=list(_FIELDS))
    LayerReservation.objects.filter(url=url).delete()
    logger.info("Node %s announces itself: layers %s of %s.", url, announcement.layers, announcement.model)
    return Node.objects.get(url=url)


def _make_room(now: datetime) -> None:
    """Raises TooManyNodes when the table is full of nodes that are there; deletes others when it is full."""
    announced = Node.objects.filter(announced_at__isnull=False)
    if announced.count() >= MOST_NODES:
        _delete_gone(now - longest_silence())
        if announced.count() >= MOST_NODES:
            raise TooManyNodes()


def _delete_gone(before: datetime) -> int:
    gone = Node.objects.filter(announced_at__lt=before, is_removed=False).exclude(url__in=static_urls())
    return gone.delete()[1].get("nodes.Node", 0)


def static_urls() -> list[str]:
    """MESHNET_NODES as the table has them: without a slash at the end, and as announcements write them."""
    urls = []
    for url in settings.MESHNET_NODES:
        urls.append(url.rstrip("/"))
        try:
            urls.append(normal_url(url))
        except BadRequest:
            continue  # the system check names it
    return urls


def _address(text: str) -> str | None:
    address = as_address(text)
    return None if address is None else str(address)


def _config() -> NodesConfig:
    return cast(NodesConfig, apps.get_app_config("nodes"))


def _tell(what: str, url: str) -> None:
    """Tells the head of this process, if one runs here. What fails there must not refuse the node."""
    listener: Callable[[str], None] | None = getattr(_config(), what)
    if listener is not None:
        try:
            listener(url)
        except Exception:
            logger.exception("The head could not take note of %s.", url)
