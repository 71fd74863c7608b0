"""TLS on both sides of a connection in the mesh: how this process serves it, and whom it trusts when it connects.

Certificates are files that the settings name. Whether they can be used is checked before anything is served
(`meshsite.checks`).
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured


def client_context() -> ssl.SSLContext:
    """For whoever connects to https:// nodes and heads: certificate and host name are checked, TLS 1.2 or newer.

    MESHNET_NODE_CA alone is trusted when it is set, else the system's authorities; MESHNET_NODE_CERT is shown to who
    asks for a certificate. Reads files: make one context and share it, threads may. Raises ImproperlyConfigured that
    names the setting.
    """
    ca, certificate, key = settings.MESHNET_NODE_CA, settings.MESHNET_NODE_CERT, settings.MESHNET_NODE_KEY
    found = [*_ca_problems("MESHNET_NODE_CA", ca), *_pair_problems("MESHNET_NODE", certificate, key)]
    if found:
        raise ImproperlyConfigured(" ".join(found))
    context = ssl.create_default_context(cafile=ca or None)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate:
        context.load_cert_chain(certificate, key)
    return context


def server_options(settings: Any) -> dict[str, Any]:
    """gunicorn's options for TLS, by name; all empty when MESHNET_TLS_CERT is.

    gunicorn reads the files for each new connection: a renewed certificate needs no restart.
    """
    client_ca = settings.MESHNET_TLS_CLIENT_CA
    return {
        "certfile": settings.MESHNET_TLS_CERT or None,
        "keyfile": settings.MESHNET_TLS_KEY or None,
        "ca_certs": client_ca or None,
        # Asking for a certificate without demanding one would be no protection.
        "cert_reqs": ssl.CERT_REQUIRED if client_ca else ssl.CERT_NONE,
    }


def server_context(config: Any, make: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
    """gunicorn's hook `ssl_context`.

    No session tickets: they are of no use, since each connection has a context of its own, and they come before a
    slow answer, so that a head would take them for its beginning.
    """
    context = make()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.num_tickets = 0
    return context


def problems(settings: Any) -> dict[str, list[str]]:
    """What is wrong with the files that the settings name, by the id of the system check that says so."""
    return {
        "meshnet.E010": _pair_problems("MESHNET_TLS", settings.MESHNET_TLS_CERT, settings.MESHNET_TLS_KEY),
        "meshnet.E011": _ca_problems("MESHNET_TLS_CLIENT_CA", settings.MESHNET_TLS_CLIENT_CA),
        "meshnet.E013": [
            *_ca_problems("MESHNET_NODE_CA", settings.MESHNET_NODE_CA),
            *_pair_problems("MESHNET_NODE", settings.MESHNET_NODE_CERT, settings.MESHNET_NODE_KEY),
        ],
    }


def _ca_problems(name: str, path: str) -> list[str]:
    if not path:
        return []
    if problem := _unreadable(name, path):
        return [problem]
    try:
        if ssl.create_default_context(cafile=path).get_ca_certs():
            return []
    except (ssl.SSLError, ValueError):
        pass
    return [f"{name} names {path!r}, which holds no certificates of authorities in PEM."]


def _pair_problems(prefix: str, certificate: str, key: str) -> list[str]:
    """A certificate and its key: both, or neither."""
    files = {f"{prefix}_CERT": certificate, f"{prefix}_KEY": key}
    there = [name for name, path in files.items() if path]
    if not there:
        return []
    if len(there) == 1:
        (missing,) = set(files) - set(there)
        return [f"{there[0]} is set without {missing}."]
    if unreadable := [problem for name, path in files.items() if (problem := _unreadable(name, path))]:
        return unreadable
    try:
        # An empty password: a server must not ask for one at the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, ValueError):
        return [f"{prefix}_CERT and {prefix}_KEY are not a certificate and its key, without a password, in PEM."]
    return []


def _unreadable(name: str, path: str) -> str:
    try:
        with Path(path).open("rb"):
            return ""
    except OSError as error:
        return f"{name} names {path!r}, which cannot be read: {error.strerror}."
