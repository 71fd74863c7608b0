"""Who may use a local mesh: its API key and its admin user in the head's database, made anew for each start."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Sequence
from urllib.parse import urlsplit

from django.contrib.auth import get_user_model
from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from generation.models import APIKey
from nodes.models import Node

KEY_NAME = "local mesh"
#: A name of its own, so that no user that somebody made is ever given another password.
ADMIN_USER = "mesh-admin"
BRIEFLY_MS = 200
_WAIT_BRIEFLY = {
    "sqlite": [f"PRAGMA busy_timeout = {BRIEFLY_MS}"],
    "postgresql": [f"SET lock_timeout = {BRIEFLY_MS}"],
}


class NotLoopback(Exception):  # reads as what is wrong
    """A user whose password is printed must not be made for a head that other machines reach."""


def prepare(head_urls: Sequence[str], node_urls: Sequence[str], admin_password: str | None) -> str:
    """Voids what the last start gave out, makes this start's, forgets nodes of other meshes. Returns the API key.

    Sessions of the admin end by themselves: they are signed with Django's secret key, which is new as well.
    Without an admin's password there is no such user. Raises NotLoopback, having changed nothing.
    """
    with transaction.atomic():
        if admin_password is not None:
            make_admin(head_urls, admin_password)
        APIKey.objects.filter(name=KEY_NAME, revoked=False).update(revoked=True)
        _, key = APIKey.objects.create_key(name=KEY_NAME)
        Node.objects.exclude(url__in=node_urls).delete()
        # What those of the last start announced does not hold of those of this one, which have the same addresses.
        Node.objects.update(announced_at=None, left_at=None, state="")
    return str(key)


def wait_briefly(connection: BaseDatabaseWrapper) -> None:
    """This connection, while it is open, waits for a lock of somebody else for BRIEFLY_MS only. Raises Error."""
    with connection.cursor() as cursor:
        for statement in _WAIT_BRIEFLY.get(connection.vendor, ()):
            cursor.execute(statement)


def forget_nodes(urls: Collection[str]) -> None:
    """Deletes the rows of nodes that are gone for good."""
    Node.objects.filter(url__in=urls).delete()


def make_admin(head_urls: Sequence[str], password: str) -> None:
    """Gives the local admin user this password. Raises NotLoopback unless every head is on loopback."""
    for head_url in head_urls:
        host = urlsplit(head_url).hostname or ""
        if not is_loopback(host):
            raise NotLoopback(
                f"{host or head_url!r} is not a loopback address: make an admin with a password of your own instead "
                "(manage.py createsuperuser)."
            )
    user, _ = get_user_model().objects.get_or_create(username=ADMIN_USER)
    user.is_active = user.is_staff = user.is_superuser = True
    user.set_password(password)
    user.save()


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
